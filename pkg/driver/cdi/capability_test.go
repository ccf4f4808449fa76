// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

func TestCapabilityDevices(t *testing.T) {
	ci := 0
	tests := map[string]struct {
		minor int
		part  gpu.Partition
		want  []uint64
	}{
		"whole":                    {5, gpu.Partition{GI: 2, CI: &ci}, []uint64{unix.Mkdev(238, 696), unix.Mkdev(238, 697)}},
		"without compute instance": {5, gpu.Partition{GI: 2}, []uint64{unix.Mkdev(238, 696)}},
		"another GPU's":            {1, gpu.Partition{GI: 2, CI: &ci}, nil},
	}
	for name, tt := range tests {
		got, err := CapabilityDevices(procfs(), &gpu.GPU{Minor: tt.minor}, &tt.part)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != (tt.want == nil) {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	proc := procfs()
	delete(proc, "driver/nvidia/capabilities/gpu5/mig/gi2/ci0/access") // the compute instance has been destroyed
	if got, err := CapabilityDevices(proc, &gpu.GPU{Minor: 5}, &gpu.Partition{GI: 2, CI: &ci}); err != nil || len(got) != 1 {
		t.Errorf("devices %v, %v, want that of the GPU instance", got, err)
	}
}

// In a pod with a user namespace the runtime mounts the host's capability nodes, which nothing has created for a new partition.
func TestWriteClaim_CreatesCapabilityNodes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may make device nodes")
	}
	s := static(t, procfs())
	root := t.TempDir()
	caps := filepath.Join(root, "dev/nvidia-caps")
	node := func(name string, major, minor uint32) {
		t.Helper()
		must(t, unix.Mknod(filepath.Join(caps, name), unix.S_IFCHR|0o444, int(unix.Mkdev(major, minor))))
	}
	must(t, os.MkdirAll(caps, 0o755))
	node("nvidia-cap84", 238, 84)
	node("nvidia-cap696", 237, 696) // of an earlier load of the module
	s.opts.DriverRoot, s.opts.ContainerDriverRoot = "/run/driver", root
	var asked [][]string
	s.opts.CreateNodes = func(_ context.Context, nodes driverroot.Nodes) error {
		asked = append(asked, nodes.Capabilities)
		must(t, os.Remove(filepath.Join(caps, "nvidia-cap696")))
		node("nvidia-cap85", 238, 85)
		node("nvidia-cap696", 238, 696)
		node("nvidia-cap697", 238, 697)
		return nil
	}
	for range 2 {
		must(t, s.WriteClaim(t.Context(), recordOf(testUID, partitions())))
	}
	const dir = "driver/nvidia/capabilities/"
	want := [][]string{{dir + "gpu0/mig/gi9/ci0/access", dir + "gpu5/mig/gi2/access", dir + "gpu5/mig/gi2/ci0/access"}}
	equal(t, "asked for", want, asked)
	// Somebody removes them.
	must(t, os.RemoveAll(caps))
	must(t, os.MkdirAll(caps, 0o755))
	node("nvidia-cap84", 238, 84)
	node("nvidia-cap696", 238, 696)
	s.EnsureNodes(t.Context(), recordOf(testUID, partitions()))
	want = append(want, []string{dir + "gpu0/mig/gi9/ci0/access", dir + "gpu5/mig/gi2/ci0/access"})
	equal(t, "asked for after that", want, asked)
	// Other pods do not need them.
	must(t, os.Remove(filepath.Join(caps, "nvidia-cap84")))
	s.opts.CreateNodes = func(context.Context, driverroot.Nodes) error { return errors.New("no nvidia-modprobe") }
	must(t, s.WriteClaim(t.Context(), recordOf(testUID, partitions())))
}

// A program that hangs keeps a claim, which has GPUs locked, for seconds and the next ones not at all.
func TestWriteClaim_NodesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := static(t, procfs())
		s.opts.DriverRoot, s.opts.ContainerDriverRoot = "/run/driver", t.TempDir()
		hangs := make(chan struct{})
		var calls atomic.Int32
		s.opts.CreateNodes = func(context.Context, driverroot.Nodes) error {
			calls.Add(1)
			<-hangs
			return nil // and there are no nodes, as where the driver is not to make any (NVreg_ModifyDeviceFiles=0)
		}
		for i, want := range []time.Duration{createTimeout, 0, 0, createTimeout, 0} {
			if i == 3 {
				time.Sleep(createPause) //nolint:forbidigo // in a bubble
			}
			began := time.Now()
			must(t, s.WriteClaim(t.Context(), recordOf(testUID, partitions())))
			if got := time.Since(began); got != want {
				t.Errorf("attempt %d took %s, want %s", i+1, got, want)
			}
		}
		close(hangs)
		time.Sleep(createPause) //nolint:forbidigo // in a bubble
		for range 3 {
			if err := s.WriteClaim(t.Context(), recordOf(testUID, partitions())); err != nil || calls.Load() != 2 {
				t.Errorf("%d attempts, %v, want another one after a minute, and no more", calls.Load(), err)
			}
		}
	})
}
