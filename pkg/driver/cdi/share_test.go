// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

const gib = int64(1) << 30

// timeSlice is a share in time of the first GPU.
func timeSlice() *records.Device {
	return &records.Device{
		Device: firstGPU + "-timeslice", GPU: firstGPU, UUID: "GPU-6b1b0a7a-0001",
		Share: &records.Share{ID: "5e1d0a7a-0001", Kind: gpu.TimeSlice, Shares: 1, Memory: 20*gib + 1},
	}
}

// limitedSlice is a time slice whose memory the driver limits.
func limitedSlice() *records.Device {
	d := timeSlice()
	d.Share.CgroupMemory, d.Share.Interval = true, "Long"
	return d
}

// mpsShare is a share of the second GPU's MPS server with all that one can have.
func mpsShare() *records.Device {
	return &records.Device{
		Device: secondGPU + "-mps", GPU: secondGPU, UUID: "GPU-6b1b0a7a-0002",
		Share: &records.Share{
			ID: "5e1d0a7a-0002", Kind: gpu.MPS, Shares: 1, Memory: 40 * gib, Cores: 50,
			MPS: &records.MPS{
				ThreadPercentage: 25, Memory: 30*gib + 1<<20 - 1, ManyClients: true, BelowNormal: true,
				PipeDir: "/run/cleave/mps/" + secondGPU + "/pipe", ShmDir: "/run/cleave/mps/" + secondGPU + "/shm",
			},
		},
	}
}

// bareMPSShare is one of a board that counts nothing.
func bareMPSShare() *records.Device {
	d := mpsShare()
	d.Share.Memory, d.Share.Cores = 0, 0
	d.Share.MPS.Memory, d.Share.MPS.ManyClients, d.Share.MPS.BelowNormal, d.Share.MPS.ThreadPercentage = 0, false, false, 100
	return d
}

// ofPartition is a share of a partition of the first GPU.
func ofPartition(d *records.Device, ci *int) *records.Device {
	d.GPU, d.UUID = firstGPU, "GPU-6b1b0a7a-0001"
	d.Partition = &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}, GI: 9, CI: ci, UUID: "MIG-5a"}
	d.Device = d.Server() + "-mps"
	d.Share.MPS.PipeDir, d.Share.MPS.ShmDir = "/run/cleave/mps/"+d.Server()+"/pipe", "/run/cleave/mps/"+d.Server()+"/shm"
	return d
}

// alone is a device whose GPU the claim has for itself, without what is counted of a share.
func alone(d *records.Device) *records.Device {
	d.Device, d.Share.ID, d.Share.Exclusive = d.GPU, records.ExclusiveID, true
	d.Share.Shares, d.Share.Memory, d.Share.Cores, d.Share.CgroupMemory = 0, 0, 0, false
	if d.Share.MPS != nil {
		d.Share.MPS.ManyClients, d.Share.MPS.BelowNormal = false, false
	}
	return d
}

// unlimited is an MPS share of which nothing was asked.
func unlimited(d *records.Device) *records.Device {
	d.Share.MPS.ThreadPercentage, d.Share.MPS.Memory = 0, 0
	return d
}

// secondOf is one more share of the same device.
func secondOf(d *records.Device) *records.Device {
	d.Share.ID += "b"
	d.Share.Memory /= 2
	if d.Share.MPS != nil {
		d.Share.MPS.Memory /= 2
	}
	return d
}

// inject does what a runtime does for a container that starts: S is an OCI spec, whose module the product does not use.
func inject[S any](into func(*S, ...string) ([]string, error), ids ...string) (*S, error) {
	container := new(S)
	_, err := into(container, ids...)
	return container, err
}

// container is what a runtime gives one that starts with CDI devices: its environment, and its mounts by destination.
func container(t *testing.T, s *Static, ids ...string) (env []string, mounts map[string]string) {
	t.Helper()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.opts.Dir), cdi.WithAutoRefresh(false))
	must(t, err)
	spec, err := inject(cache.InjectDevices, ids...)
	if err != nil || len(cache.GetErrors()) > 0 {
		t.Fatalf("a runtime cannot inject %v: %v (%v)", ids, err, cache.GetErrors())
	}
	mounts = map[string]string{}
	for _, m := range spec.Mounts {
		mounts[m.Destination] = m.Source
	}
	return spec.Process.Env, mounts
}

func TestWriteClaim_Shares(t *testing.T) {
	ci := 0
	tests := map[string][]*records.Device{
		"share-timeslice.json":        {timeSlice()},
		"share-timeslice-cgroup.json": {limitedSlice()},
		"share-mps.json":              {mpsShare()},
		"share-mps-bare.json":         {bareMPSShare()},
		"share-two-of-one.json":       {timeSlice(), secondOf(timeSlice())},
		"share-two-of-one-mps.json":   {mpsShare(), secondOf(mpsShare())},
		"share-alone.json":            {alone(mpsShare())},
		"share-alone-bare.json":       {unlimited(alone(mpsShare()))},
		"share-of-partition.json":     {ofPartition(mpsShare(), &ci)},
		"share-mixed.json": {
			mpsShare(),
			{Device: firstGPU + "-mig-19-2", GPU: firstGPU,
				Partition: &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}, GI: 9, CI: &ci, UUID: "MIG-5a"}},
		},
	}
	for name, devices := range tests {
		t.Run(name, func(t *testing.T) {
			s := static(t, procfs())
			s.opts.DriverRoot, s.opts.MemoryHookPath = "/run/driver", "/var/lib/cleave/cleave-memory-limit"
			must(t, s.WriteClaim(t.Context(), recordOf(testUID, devices)))
			data, err := os.ReadFile(s.ClaimPath(testUID))
			must(t, err)
			checkGolden(t, name, data)
			var ids []string
			for _, d := range devices {
				ids = append(ids, s.ClaimID(testUID, d))
				env, mounts := container(t, s, s.ClaimID(testUID, d))
				if d.Share == nil || d.Share.MPS == nil {
					continue
				}
				for _, v := range env {
					if dir, ok := strings.CutPrefix(v, "CUDA_MPS_PIPE_DIRECTORY="); ok && mounts[dir] != d.Share.MPS.PipeDir {
						t.Errorf("the pipes are looked for in %s, and there is %q", dir, mounts[dir])
					}
				}
				if mounts["/dev/shm"] != d.Share.MPS.ShmDir {
					t.Errorf("/dev/shm is %q, want that of the server's clients", mounts["/dev/shm"])
				}
			}
			if len(ids) == 2 && ids[0] == ids[1] {
				t.Errorf("both devices are %s", ids[0])
			}
		})
	}
}
