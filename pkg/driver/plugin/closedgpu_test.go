// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"
	"testing/synctest"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// While a GPU is closed for its reset, no search of the driver's files opens it, and none is cut short for that.
func TestHardware_ReleaseKeepsSearches(t *testing.T) {
	session, err := simulated.Open(t.Context(), "dgx-a100")
	if err != nil {
		t.Fatal(err)
	}
	hw := &hardware{Session: session, closed: newClosedGPU()}
	searched := 0
	root := t.TempDir()
	// With a /dev of its own the root's device nodes are looked for there. This machine's may have some.
	write(t, filepath.Join(root, "dev/null"), "")
	static, err := cdi.NewStatic(cdi.Options{
		Driver: "gpu.cleave.dev", Dir: t.TempDir(), DriverRoot: root, ContainerDriverRoot: root, Procfs: fstest.MapFS{}, Search: hw.closed.search,
		CreateNodes: func(context.Context, driverroot.Nodes) error { searched++; return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
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
			controlled{&service{driver: driverFiles{}}, hw}.Close(t.Context())
			close(closed)
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
