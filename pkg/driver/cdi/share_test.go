// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"io/fs"
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
			if err := s.WriteClaim(t.Context(), recordOf(testUID, devices)); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(s.ClaimPath(testUID))
			if err != nil {
				t.Fatal(err)
			}
			checkGolden(t, name, data)
			cache, err := cdi.NewCache(cdi.WithSpecDirs(s.opts.Dir), cdi.WithAutoRefresh(false))
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, d := range devices {
				ids = append(ids, s.ClaimID(testUID, d))
				if _, err := inject(cache.InjectDevices, s.ClaimID(testUID, d)); err != nil {
					t.Errorf("a runtime cannot inject it: %v (%v)", err, cache.GetErrors())
				}
			}
			if len(ids) == 2 && ids[0] == ids[1] {
				t.Errorf("both devices are %s", ids[0])
			}
		})
	}
}

func TestWriteClaim_MPSContainer(t *testing.T) {
	s := static(t, procfs())
	d := mpsShare()
	if err := s.WriteClaim(t.Context(), recordOf(testUID, []*records.Device{d})); err != nil {
		t.Fatal(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(s.opts.Dir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	container, err := inject(cache.InjectDevices, s.ClaimID(testUID, d))
	if err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{}
	for _, m := range container.Mounts {
		mounts[m.Destination] = m.Source
	}
	for _, env := range container.Process.Env {
		if dir, ok := strings.CutPrefix(env, "CUDA_MPS_PIPE_DIRECTORY="); ok && mounts[dir] != d.Share.MPS.PipeDir {
			t.Errorf("the pipes are looked for in %s, and there is %q", dir, mounts[dir])
		}
	}
	if mounts["/dev/shm"] != d.Share.MPS.ShmDir {
		t.Errorf("/dev/shm is %q, want that of the server's clients", mounts["/dev/shm"])
	}
}

func TestWriteClaim_ShareRewritten(t *testing.T) {
	s := static(t, procfs())
	for _, devices := range [][]*records.Device{{timeSlice()}, {mpsShare(), timeSlice()}} {
		if err := s.WriteClaim(t.Context(), recordOf(testUID, devices)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(s.ClaimPath(testUID))
	if err != nil || !strings.Contains(string(data), "CUDA_MPS") {
		t.Errorf("got %s, %v, want the later devices", data, err)
	}
	if err := (Remover{Dir: s.opts.Dir, Driver: testDriver}).RemoveClaim(testUID); err != nil || s.HasClaim(testUID) {
		t.Errorf("after RemoveClaim: %v, spec %t", err, s.HasClaim(testUID))
	}
}

func TestWriteClaim_ShareErrors(t *testing.T) {
	tests := map[string]struct {
		change func(d *records.Device)
		want   string
	}{
		"no server yet":      {func(d *records.Device) { d.Share.MPS.PipeDir = "" }, "has no MPS server"},
		"no shared memory":   {func(d *records.Device) { d.Share.MPS.ShmDir = "" }, "empty host path"},
		"nothing of MPS":     {func(d *records.Device) { d.Share.MPS = nil }, "has no MPS server"},
		"odd share id":       {func(d *records.Device) { d.Share.ID = "a/b" }, "a/b"},
		"share id with =":    {func(d *records.Device) { d.Share.ID = "a=b" }, "a=b"},
		"odd name of device": {func(d *records.Device) { d.Device = "x y" }, "x y"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := static(t, procfs())
			d := mpsShare()
			tt.change(d)
			err := s.WriteClaim(t.Context(), recordOf(testUID, []*records.Device{timeSlice(), d}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error that says %q", err, tt.want)
			}
			if left, err := os.ReadDir(s.opts.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
				t.Errorf("got files %v, %v, want none", left, err)
			}
		})
	}
}
