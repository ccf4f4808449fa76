// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/golden"
)

const (
	testDriver = "gpu.cleave.dev"
	testUID    = types.UID("8a2a7e2e-5e22-4c8e-9a5b-0c5b1f0f7d11")
	firstGPU   = "gpu-0000-1b-00-0"
	secondGPU  = "gpu-0000-43-00-0"
)

// procfs is /proc of a node with partitions: GPU instance 9 of GPU 0 and GPU instance 2 of GPU 5.
func procfs() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	const dir = "driver/nvidia/capabilities/"
	return fstest.MapFS{
		"devices": file("Character devices:\n  1 mem\n195 nvidia\n511 nvidia-caps-imex-channels\n238 nvidia-caps\n\n" +
			"Block devices:\n  8 sd\n"),
		dir + "gpu0/mig/gi9/access":     file("DeviceFileMinor: 84\nDeviceFileMode: 292\nDeviceFileModify: 1\n"),
		dir + "gpu0/mig/gi9/ci0/access": file("DeviceFileMinor: 85\nDeviceFileMode: 292\nDeviceFileModify: 1\n"),
		dir + "gpu5/mig/gi2/access":     file("DeviceFileMinor: 696\nDeviceFileMode: 292\nDeviceFileModify: 1\n"),
		dir + "gpu5/mig/gi2/ci0/access": file("DeviceFileMinor: 697\nDeviceFileMode: 292\nDeviceFileModify: 1\n"),
	}
}

// static is a Static that knows two GPUs, without a driver.
func static(t *testing.T, proc fs.FS) *Static {
	t.Helper()
	s, err := NewStatic(Options{Driver: testDriver, Dir: filepath.Join(t.TempDir(), "cdi"), DriverRoot: "/",
		ContainerDriverRoot: "/", Procfs: proc})
	must(t, err)
	s.minors = map[string]int{firstGPU: 0, secondGPU: 5}
	return s
}

// partitions are those of procfs.
func partitions() []*records.Device {
	ci := 0
	return []*records.Device{
		{Device: firstGPU + "-mig-19-2", GPU: firstGPU,
			Partition: &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 2, Size: 1}, GI: 9, CI: &ci, UUID: "MIG-5a"}},
		{Device: secondGPU + "-mig-9-4", GPU: secondGPU,
			Partition: &gpu.Partition{ProfileID: 9, Placement: gpu.Placement{Start: 4, Size: 4}, GI: 2, CI: &ci, UUID: "MIG-5b"}},
	}
}

// recordOf is the record of a claim with these devices, each of a request of its own.
func recordOf(uid types.UID, devices []*records.Device) *records.Record {
	r := &records.Record{Claim: records.Claim{UID: uid}}
	for i, d := range devices {
		device := *d
		if device.Request == "" {
			device.Request = "request-" + strconv.Itoa(i)
		}
		r.Devices = append(r.Devices, device)
	}
	return r
}

// checkGolden compares JSON with a file in testdata.
func checkGolden(t *testing.T, name string, data []byte) {
	t.Helper()
	var out bytes.Buffer
	must(t, json.Indent(&out, data, "", "  "))
	golden.Check(t, filepath.Join("testdata", name), out.String()+"\n")
}

// Of a claim's own partitions the spec says in which session of the driver they were created; containers do not see it.
func TestClaimSession(t *testing.T) {
	s := static(t, procfs())
	if got := s.ClaimSession(testUID, firstGPU+"-mig-19-2"); got != "" {
		t.Errorf("session of a claim without a spec: %q", got)
	}
	devices := partitions()
	for _, d := range devices {
		d.Session = "R.7.8"
	}
	devices[1].Partition.Existing = true
	must(t, s.WriteClaim(t.Context(), recordOf(testUID, devices)))
	got := map[string]string{}
	for _, d := range append(devices, &records.Device{Device: firstGPU + "-mig-19-20"}) {
		got[d.Device] = s.ClaimSession(testUID, d.Device)
	}
	want := map[string]string{firstGPU + "-mig-19-2": "R.7.8", secondGPU + "-mig-9-4": "", firstGPU + "-mig-19-20": ""}
	equal(t, "sessions", want, got)
	for _, d := range devices {
		env, _ := container(t, s, s.ClaimID(testUID, d))
		if slices.ContainsFunc(env, func(v string) bool { return strings.Contains(v, "SESSION") }) {
			t.Errorf("a container sees sessions: %v", env)
		}
	}
}

func TestWriteClaim_CapabilityNodes(t *testing.T) {
	s := static(t, procfs())
	if s.HasClaim(testUID) {
		t.Error("a claim has a spec before it is written")
	}
	must(t, s.WriteClaim(t.Context(), recordOf(testUID, partitions())))
	data, err := os.ReadFile(s.ClaimPath(testUID))
	must(t, err)
	checkGolden(t, "claim.json", data)
	if !s.HasClaim(testUID) {
		t.Error("a claim has no spec after it is written")
	}
	for _, p := range partitions() {
		container(t, s, s.ClaimID(testUID, p))
	}
}

// What a container has in CLEAVE_GPU_UUID is all devices of its request, whatever those of other requests are.
func TestWriteClaim_UUIDs(t *testing.T) {
	whole := func(request, device string) *records.Device {
		return &records.Device{Request: request, Device: device, GPU: device, UUID: "GPU-" + device}
	}
	partition := func(request string, at int) *records.Device {
		p := partitions()[at]
		p.Request = request
		return p
	}
	slice := func(request string) *records.Device {
		d := timeSlice()
		d.Request = request
		return d
	}
	tests := map[string]struct {
		devices []*records.Device
		want    string // of a container with the first request
	}{
		"GPU":                   {[]*records.Device{whole("a", firstGPU)}, "GPU-" + firstGPU},
		"GPUs":                  {[]*records.Device{whole("a", firstGPU), whole("a", secondGPU)}, "GPU-" + firstGPU + ",GPU-" + secondGPU},
		"GPU, another's GPU":    {[]*records.Device{whole("a", firstGPU), whole("b", secondGPU)}, "GPU-" + firstGPU},
		"partition":             {[]*records.Device{partition("a", 0)}, "MIG-5a"},
		"partitions":            {[]*records.Device{partition("a", 1), partition("a", 0)}, "MIG-5b,MIG-5a"},
		"two shares of one GPU": {[]*records.Device{slice("a"), secondOf(slice("a"))}, "GPU-6b1b0a7a-0001"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := static(t, procfs())
			writeGPUs(t, s, firstGPU, secondGPU)
			r := recordOf(testUID, tt.devices)
			if len(r.WithEdits()) > 0 {
				must(t, s.WriteClaim(t.Context(), r))
			}
			var ids []string
			for i := range r.Devices {
				d := &r.Devices[i]
				if d.Request != "a" {
					continue
				}
				ids = append(ids, s.DeviceID(d.GPU))
				if slices.Contains(r.WithEdits(), d) {
					ids = append(ids, s.ClaimID(testUID, d))
				}
			}
			env, _ := container(t, s, ids...)
			got := slices.DeleteFunc(env, func(v string) bool { return !strings.HasPrefix(v, "CLEAVE_GPU_UUID=") })
			if diff := cmp.Diff([]string{"CLEAVE_GPU_UUID=" + tt.want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// writeGPUs writes the static spec of GPUs that have nothing but their UUID.
func writeGPUs(t *testing.T, s *Static, devices ...string) {
	t.Helper()
	spec := &specs.Spec{Version: "0.6.0", Kind: testDriver + "/" + Class}
	for _, d := range devices {
		spec.Devices = append(spec.Devices, specs.Device{Name: d, ContainerEdits: specs.ContainerEdits{Env: []string{uuidVariable + "=GPU-" + d}}})
	}
	must(t, s.dir.write(spec, staticFile(testDriver)))
}

func TestRemoveClaim_Idempotent(t *testing.T) {
	s := static(t, procfs())
	other := types.UID("other")
	for _, uid := range []types.UID{testUID, other} {
		must(t, s.WriteClaim(t.Context(), recordOf(uid, partitions())))
	}
	r := Remover{Dir: s.opts.Dir, Driver: testDriver}
	for _, name := range []string{testDriver + "-gpu.json", testDriver + "-claim_.json", "other.example.com-claim_x.json", testDriver + "-claim_x.tmp"} {
		must(t, os.WriteFile(filepath.Join(s.opts.Dir, name), nil, 0o600))
	}
	if got, err := r.Claims(); err != nil || !slices.Equal(got, []types.UID{testUID, other}) {
		t.Errorf("claims with specs: %v, %v", got, err)
	}
	for range 2 {
		must(t, r.RemoveClaim(testUID))
	}
	if s.HasClaim(testUID) || !s.HasClaim(other) {
		t.Errorf("specs after removing one: its own %t, the other's %t", s.HasClaim(testUID), s.HasClaim(other))
	}
	if err := (Remover{Dir: filepath.Join(s.opts.Dir, "missing"), Driver: testDriver}).RemoveClaim(testUID); err != nil {
		t.Errorf("no CDI directory: %v", err)
	}
	if got, err := (Remover{Dir: filepath.Join(s.opts.Dir, "missing"), Driver: testDriver}).Claims(); err != nil || len(got) > 0 {
		t.Errorf("claims with specs without a CDI directory: %v, %v", got, err)
	}
}

func TestWriteClaim_Errors(t *testing.T) {
	const access = "driver/nvidia/capabilities/gpu5/mig/gi2/ci0/access"
	share := func(change func(d *records.Device)) func(fstest.MapFS, []*records.Device) {
		return func(_ fstest.MapFS, devices []*records.Device) { change(devices[2]) }
	}
	tests := map[string]struct {
		change func(proc fstest.MapFS, parts []*records.Device)
		want   string
	}{
		"no capability file": {func(proc fstest.MapFS, _ []*records.Device) { delete(proc, access) }, secondGPU + "-mig-9-4"},
		"no minor in it": {func(proc fstest.MapFS, _ []*records.Device) {
			proc[access] = &fstest.MapFile{Data: []byte("DeviceFileMode: 292\n")}
		}, "DeviceFileMinor"},
		"odd minor": {func(proc fstest.MapFS, _ []*records.Device) {
			proc[access] = &fstest.MapFile{Data: []byte("DeviceFileMinor: many\n")}
		}, "many"},
		"no /proc/devices": {func(proc fstest.MapFS, _ []*records.Device) { delete(proc, "devices") }, "nvidia-caps"},
		"no nvidia-caps": {func(proc fstest.MapFS, _ []*records.Device) {
			proc["devices"] = &fstest.MapFile{Data: []byte("195 nvidia\n511 nvidia-caps-imex-channels\n")}
		}, "is the nvidia module loaded"},
		"no compute instance": {func(_ fstest.MapFS, parts []*records.Device) { parts[1].Partition.CI = nil }, "no compute instance"},
		"unknown GPU":         {func(_ fstest.MapFS, parts []*records.Device) { parts[1].GPU = "gpu-0000-ff-00-0" }, "gpu-0000-ff-00-0"},
		"odd device name":     {func(_ fstest.MapFS, parts []*records.Device) { parts[1].Device = "a/b" }, "a/b"},
		"no server yet":       {share(func(d *records.Device) { d.Share.MPS.PipeDir = "" }), "has no MPS server"},
		"no shared memory":    {share(func(d *records.Device) { d.Share.MPS.ShmDir = "" }), "empty host path"},
		"nothing of MPS":      {share(func(d *records.Device) { d.Share.MPS = nil }), "has no MPS server"},
		"odd share ID":        {share(func(d *records.Device) { d.Share.ID = "a/b" }), "a/b"},
		"share ID with =":     {share(func(d *records.Device) { d.Share.ID = "a=b" }), "a=b"},
		"odd name of share":   {share(func(d *records.Device) { d.Device = "x y" }), "x y"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			proc, devices := procfs(), append(partitions(), mpsShare())
			tt.change(proc, devices)
			s := static(t, proc)
			err := s.WriteClaim(t.Context(), recordOf(testUID, devices))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error that says %q", err, tt.want)
			}
			if left, err := os.ReadDir(s.opts.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
				t.Errorf("got files %v, %v, want none", left, err)
			}
		})
	}
}
