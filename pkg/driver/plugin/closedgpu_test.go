// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// incompleteSpec is that of a driver root without device nodes; it counts its searches.
func incompleteSpec(t *testing.T, closed *closedGPU, searched *int) *cdi.Static {
	t.Helper()
	root := t.TempDir()
	// With a /dev of its own the root's device nodes are looked for there. This machine's may have some.
	write(t, filepath.Join(root, "dev/null"), "")
	static, err := cdi.NewStatic(cdi.Options{
		Driver: "gpu.cleave.dev", Dir: t.TempDir(), DriverRoot: root, ContainerDriverRoot: root, Procfs: fstest.MapFS{}, Search: closed.search,
		CreateNodes: func(context.Context, driverroot.Nodes) error { *searched++; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return static
}

// While a GPU is closed for its reset, no search of the driver's files opens it, and none is cut short for that.
func TestHardware_ReleaseKeepsSearches(t *testing.T) {
	session, err := simulated.Open(t.Context(), "dgx-a100")
	if err != nil {
		t.Fatal(err)
	}
	hw := &hardware{Session: session, closed: newClosedGPU()}
	searched := 0
	static := incompleteSpec(t, hw.closed, &searched)
	refresh := func() error { return static.Refresh(t.Context(), session.Node()) }
	pci := session.Node().GPUs[0].PCI
	done, err := hw.closed.search()
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := hw.Release(ended, pci); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("Release during a search = %v", err)
	}
	done()
	for range 2 {
		if err := hw.Release(t.Context(), pci); err != nil {
			t.Fatal(err)
		}
	}
	if err := refresh(); !errors.Is(err, gpu.ErrReleased) || searched > 0 {
		t.Errorf("Refresh while a GPU is closed = %v, %d searches", err, searched)
	}
	if err := hw.Retake(t.Context(), pci); err != nil {
		t.Fatal(err)
	}
	if err := refresh(); errors.Is(err, gpu.ErrReleased) || searched != 1 {
		t.Errorf("Refresh after that = %v, %d searches", err, searched)
	}
}

// A search that outlives its call keeps the driver in use: the release waits for it.
func TestControlled_CloseWaitsForSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session, err := simulated.Open(t.Context(), "a30")
		if err != nil {
			t.Fatal(err)
		}
		hw := &hardware{Session: session, closed: newClosedGPU()}
		done, err := hw.closed.search()
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			if err := (controlled{&service{driver: driverFiles{}}, hw}).Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("the driver is released while a search has it open")
		default:
		}
		done()
		<-closed
	})
}

// slowLibrary is one whose GPUs answer a temperature query after five seconds. It counts how often it was shut down.
type slowLibrary struct {
	nvml.Library
	shutdowns int
}

func (l *slowLibrary) Shutdown() error {
	l.shutdowns++
	return l.Library.Shutdown()
}

func (l *slowLibrary) DeviceByIndex(index int) (nvml.Device, error) {
	device, err := l.Library.DeviceByIndex(index)
	return slowDevice{device}, err
}

type slowDevice struct{ nvml.Device }

func (d slowDevice) Temperature() error {
	<-time.After(5 * time.Second)
	return d.Device.Temperature()
}

// A call that nobody waits for any more keeps the driver in use: it is not released before that has returned, and then once.
func TestControlled_CloseWhileSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, err := sim.New("a30")
		if err != nil {
			t.Fatal(err)
		}
		lib := &slowLibrary{Library: simulated.Library(node)}
		session, err := nvml.OpenLibrary(t.Context(), lib, node.Sysfs())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = session.VerifyGPU(ctx, &session.Node().GPUs[0]) }()
		synctest.Wait()
		cancel()
		c := controlled{&service{driver: driverFiles{}}, &hardware{Session: session, closed: newClosedGPU()}}
		for i, want := range []error{gpu.ErrHangs, nil, nil} {
			if err := c.Close(t.Context()); !errors.Is(err, want) || (lib.shutdowns > 0) != (want == nil) {
				t.Errorf("attempt %d: got %v, %d shutdowns; want %v", i, err, lib.shutdowns, want)
			}
		}
		if lib.shutdowns != 1 {
			t.Errorf("%d shutdowns, want one", lib.shutdowns)
		}
	})
}
