// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// wantError fails unless an error says all of these.
func wantError(t *testing.T, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one that says %q", says)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func TestOpenLibrary_ReadFails(t *testing.T) {
	lib := &fakeLibrary{errs: map[string]error{"DeviceCount": gpu.ErrDriverNotLoaded, "Shutdown": gpu.ErrDriverNotLoaded}}
	_, err := OpenLibrary(t.Context(), lib, noSysfs())
	if !errors.Is(err, gpu.ErrDriverNotLoaded) {
		t.Errorf("got %v, want %v", err, gpu.ErrDriverNotLoaded)
	}
	if got, want := lib.calls[len(lib.calls)-1], "Shutdown"; got != want {
		t.Errorf("last call: got %s, want %s", got, want)
	}
	lib = &fakeLibrary{errs: map[string]error{"Init": gpu.ErrDriverNotLoaded}}
	if _, err := OpenLibrary(t.Context(), lib, noSysfs()); !errors.Is(err, gpu.ErrDriverNotLoaded) {
		t.Errorf("got %v, want %v", err, gpu.ErrDriverNotLoaded)
	}
	if slices.Contains(lib.calls, "Shutdown") {
		t.Error("Shutdown was called though Init failed")
	}
}

// Who ends a session holds the lock of a GPU, or is the control loop.
func TestClose_ShutdownHangs(t *testing.T) {
	for name, open := range map[string]func(ctx context.Context, lib Library) (io.Closer, error){
		"session": func(ctx context.Context, lib Library) (io.Closer, error) { return OpenLibrary(ctx, lib, noSysfs()) },
		"direct":  func(ctx context.Context, lib Library) (io.Closer, error) { return OpenDirectLibrary(ctx, lib) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				defer close(end)
				session, err := open(t.Context(), &fakeLibrary{devices: []*fakeDevice{h100(0)}, called: hangsIn("Shutdown", end)})
				must(t, err)
				if err := session.Close(); !errors.Is(err, gpu.ErrHangs) {
					t.Errorf("Close = %v, want %v", err, gpu.ErrHangs)
				}
			})
		})
	}
}

func TestProcesses(t *testing.T) {
	device := h100(0)
	device.pids = []int{7, 42}
	s := openFake(t, &fakeLibrary{devices: []*fakeDevice{device}})
	got, err := s.Processes(t.Context(), s.Node().GPUs[0].PCI)
	must(t, err)
	equal(t, "processes", []int{7, 42}, got)
	device.errs["RunningProcesses"] = gpu.ErrNotSupported
	if _, err := s.Processes(t.Context(), s.Node().GPUs[0].PCI); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("got %v, want %v", err, gpu.ErrNotSupported)
	}
	if _, err := s.Processes(t.Context(), gpu.PCIAddress{Bus: 0xff}); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("absent: got %v, want %v", err, gpu.ErrNotFound)
	}
}

func TestRefresh_Fails(t *testing.T) {
	lib := &fakeLibrary{devices: []*fakeDevice{h100(0)}, errs: map[string]error{}}
	s := openFake(t, lib)
	lib.errs["DeviceCount"] = gpu.ErrDriverNotLoaded
	if err := s.Refresh(t.Context()); err == nil {
		t.Fatal("Refresh: want an error")
	}
	if got := len(s.Node().GPUs); got != 1 {
		t.Errorf("got %d GPUs, want the one read before", got)
	}
	lib.errs, lib.devices = nil, []*fakeDevice{h100(0), h100(1)}
	must(t, s.Refresh(t.Context()))
	if got := len(s.Node().GPUs); got != 2 {
		t.Errorf("got %d GPUs, want 2", got)
	}
}

func TestWait_NotifiesOncePerReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		path := filepath.Join(root, "usr/lib64", driverroot.LibraryName)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		var all []string
		done := make(chan error, 1)
		go func() {
			_, err := Wait(ctx, Options{DriverRoot: root, Sysfs: noSysfs()}, time.Second, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, err.Error())
			})
			done <- err
		}()
		pass := func(d time.Duration) []string {
			<-time.After(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
		reasons := pass(10 * time.Second)
		if len(reasons) != 1 || !strings.Contains(reasons[0], root) {
			t.Errorf("after ten attempts: got %q, want one reason that names %s", reasons, root)
		}
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte("not an ELF file"), 0o600))
		reasons = pass(10 * time.Second)
		if len(reasons) != 2 || !strings.Contains(reasons[1], path) {
			t.Errorf("after the library came, broken: got %q, want a second reason that names %s", reasons, path)
		}
		cancel()
		err := <-done
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
		wantError(t, err, "wait for the NVIDIA driver", path)
	})
}

func TestWait_NilNotify(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Wait(ctx, Options{DriverRoot: t.TempDir(), Sysfs: noSysfs()}, time.Hour, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
