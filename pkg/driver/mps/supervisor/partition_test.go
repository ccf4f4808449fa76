// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// partition creates a 3g.40gb of an HGX H100's first GPU and asks for its MPS server.
func (b *bed) partition(t testing.TB, claim string, start int) mps.Request {
	t.Helper()
	node := b.node(t)
	must(t, node.Init())
	r := b.request(t, claim, 0)
	mig := node.Device(0).MIG()
	_, errMode := mig.SetMIGMode(true)
	gi, err := mig.CreateGPUInstanceWithPlacement(9, gpu.Placement{Start: start, Size: 4})
	if errors.Join(errMode, err) != nil {
		t.Fatal(errMode, err)
	}
	info, err := gi.ComputeInstanceProfileInfo(2, 0)
	must(t, err)
	if _, err := gi.CreateComputeInstance(info.ID); err != nil {
		t.Fatal(err)
	}
	st, err := node.Status()
	must(t, err)
	for _, instance := range st.GPUs[0].Instances {
		if instance.ID == gi.ID() {
			r.UUID = instance.Compute[0].UUID
		}
	}
	r.Device = gpu.Place{ProfileID: 9, Placement: gpu.Placement{Start: start}}.DeviceName(r.Device)
	return r
}

// leaveMIGMode destroys the partitions of the first GPU. It fails while a server is in one.
func (b *bed) leaveMIGMode(t testing.TB) {
	t.Helper()
	node := b.node(t)
	must(t, node.Init())
	st, err := node.Status()
	must(t, err)
	for _, instance := range st.GPUs[0].Instances {
		gi, err := node.Device(0).MIG().GPUInstanceByID(instance.ID)
		must(t, err)
		for _, compute := range instance.Compute {
			ci, err := gi.ComputeInstanceByID(compute.ID)
			if err == nil {
				err = ci.Destroy()
			}
			must(t, err)
		}
		must(t, gi.Destroy())
	}
	if _, err := node.Device(0).MIG().SetMIGMode(false); err != nil {
		t.Fatal(err)
	}
}

// Two partitions of a GPU have a daemon each, whose programs have the limits of their partition; the GPU's compute mode, which
// it does not have in MIG mode, is left alone.
func TestPartition_DaemonEach(t *testing.T) {
	b := newBed(t)
	lower, upper := b.partition(t, "a", 0), b.partition(t, "b", 4)
	c, _ := b.serve(t)
	first, second := mustEnsure(t, c, lower), mustEnsure(t, c, upper)
	if first.PipeDir == second.PipeDir || first.ShmDir == second.ShmDir {
		t.Fatalf("both daemons have %s", first.PipeDir)
	}
	for r, e := range map[*mps.Request]mps.Endpoint{&lower: first, &upper: second} {
		given, held := b.client(t, e, "--memory", "2G", "--hold")
		if given["device"] != r.UUID {
			t.Errorf("a program of %s was given %v, want %s", r.Device, given, r.UUID)
		}
		defer func() { _ = held.Process.Kill() }()
		b.wantOutOfMemory(t, e)
	}
	if st := statusOf(t, c); len(st) != 2 || st[0].PID == st[1].PID {
		t.Errorf("status %+v, want two daemons", st)
	}
	mustRelease(t, c, lower)
	if _, program := b.client(t, second, "--memory", "1G"); program.Wait() != nil {
		t.Error("a program of the other partition lost its server, too")
	}
	mustRelease(t, c, upper)
	if st := statusOf(t, c); len(st) > 0 {
		t.Errorf("status %+v, want none", st)
	}
	b.leaveMIGMode(t) // in which the GPU has no compute mode to look at
}

// A record that was lost means the same for a partition, whose GPU keeps its compute mode.
func TestPartition_RecordLost(t *testing.T) {
	h, config := newFakeHost(), testConfig(t)
	s, stop := startFake(t, config, h)
	r := requestFor("a", 1)
	r.Device, r.UUID = r.Device+"-mig-9-4", "MIG-1d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2"
	h.modes[r.PCI] = 3 // as another process set it
	ensure(t, s, r)
	if h.opened != 0 || h.modes[r.PCI] != 3 {
		t.Errorf("compute mode %d, want it left alone", h.modes[r.PCI])
	}
	stop()
	must(t, os.WriteFile(recordOf(config.Dir, r.Device), []byte("{"), 0o600))
	s, stop = startFake(t, config, h)
	defer stop()
	must(t, s.Retain(t.Context(), r.Device, testOwner, nil))
	if h.modes[r.PCI] != 3 || len(h.processes) > 0 {
		t.Errorf("compute mode %d and processes %v are left", h.modes[r.PCI], h.processes)
	}
}

func TestCheckRequest_Partitions(t *testing.T) {
	const uuid = "MIG-1d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2"
	tests := map[string]struct {
		device, uuid string
		want         string
	}{
		"a partition":           {"gpu-0000-01-00-0-mig-9-4", uuid, ""},
		"the GPU's UUID":        {"gpu-0000-01-00-0-mig-9-4", testUUID, "is not the UUID of partition gpu-0000-01-00-0-mig-9-4, such as MIG-"},
		"a partition's UUID":    {"gpu-0000-01-00-0", uuid, "is not the UUID of GPU gpu-0000-01-00-0, such as GPU-"},
		"a shared device":       {"gpu-0000-01-00-0-mig-9-4-mps", uuid, "is not the device name"},
		"of no start":           {"gpu-0000-01-00-0-mig-9", uuid, "is not the device name"},
		"with zeros":            {"gpu-0000-01-00-0-mig-09-4", uuid, "is not the device name"},
		"a path":                {"gpu-0000-01-00-0-mig-9-4/..", uuid, "is not the device name"},
		"too long for a socket": {"gpu-0000-01-00-0-mig-123456789-1234567", uuid, "is not the device name"},
	}
	for name, tt := range tests {
		r := requestFor("a", 1)
		r.Device, r.UUID = tt.device, tt.uuid
		err := checkRequest(r)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	p := pathsOf("/"+strings.Repeat("x", maxDir-1), strings.Repeat("x", maxDevice))
	for _, path := range []string{p.pipe + "/" + privilegedSocket, p.clients + "/" + controlSocket} {
		if len(path) > 107 {
			t.Errorf("%s has %d characters: no socket can have it (unix(7))", path, len(path))
		}
	}
}
