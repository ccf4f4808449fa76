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

	"github.com/google/go-cmp/cmp"

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

func TestFindLibrary_Errors(t *testing.T) {
	empty := t.TempDir()
	_, err := FindLibrary(Options{DriverRoot: empty})
	wantError(t, err, driverroot.LibraryName, empty, "--driver-root", "--nvml-library")
	if !errors.Is(err, gpu.ErrLibraryNotFound) {
		t.Errorf("got %v, want %v", err, gpu.ErrLibraryNotFound)
	}
	missing := filepath.Join(empty, "libnvidia-ml.so.1")
	_, err = FindLibrary(Options{DriverRoot: empty, LibraryPath: missing})
	wantError(t, err, missing, "--nvml-library")
	if !errors.Is(err, gpu.ErrLibraryNotFound) {
		t.Errorf("got %v, want %v", err, gpu.ErrLibraryNotFound)
	}
}

func TestFindLibrary_DriverRoot(t *testing.T) {
	for _, dir := range []string{"usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "usr/local/nvidia/lib64", "usr/lib"} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		real := filepath.Join(root, dir, "libnvidia-ml.so.580.95.05")
		link := filepath.Join(root, dir, driverroot.LibraryName)
		if err := os.MkdirAll(filepath.Dir(real), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(real, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Base(real), link); err != nil {
			t.Fatal(err)
		}
		got, err := FindLibrary(Options{DriverRoot: root})
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if got != real && got != link {
			t.Errorf("%s: got %q, want %q", dir, got, real)
		}
		if got, err := FindLibrary(Options{DriverRoot: "/nowhere", LibraryPath: link}); err != nil || got != link {
			t.Errorf("%s given: got %q, %v, want %q", dir, got, err, link)
		}
	}
}

func TestOpen_NotALibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), driverroot.LibraryName)
	if err := os.WriteFile(path, []byte("not an ELF file"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{LibraryPath: path, Sysfs: noSysfs()})
	wantError(t, err, path)
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

// hangsAtShutdown is a driver that does not return from nvmlShutdown.
type hangsAtShutdown struct {
	*fakeLibrary
	until chan struct{}
}

func (l hangsAtShutdown) Shutdown() error {
	<-l.until
	return nil
}

// Who ends a session holds the lock of a GPU, or is the control loop.
func TestClose_ShutdownHangs(t *testing.T) {
	for name, open := range map[string]func(ctx context.Context, lib Library) (io.Closer, error){
		"session": func(ctx context.Context, lib Library) (io.Closer, error) { return OpenLibrary(ctx, lib, noSysfs()) },
		"direct":  func(ctx context.Context, lib Library) (io.Closer, error) { return OpenDirectLibrary(ctx, lib) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := hangsAtShutdown{&fakeLibrary{devices: []*fakeDevice{h100(0)}}, make(chan struct{})}
				defer close(lib.until)
				session, err := open(t.Context(), lib)
				if err != nil {
					t.Fatal(err)
				}
				if err := session.Close(); !errors.Is(err, gpu.ErrHangs) {
					t.Errorf("Close = %v, want %v", err, gpu.ErrHangs)
				}
			})
		})
	}
}

func TestVerifyGPU(t *testing.T) {
	device := h100(0)
	s := openFake(t, &fakeLibrary{devices: []*fakeDevice{device}})
	g := &s.Node().GPUs[0]
	if err := s.VerifyGPU(t.Context(), g); err != nil {
		t.Errorf("a GPU in good health: %v", err)
	}
	device.uuid = "GPU-other"
	wantError(t, s.VerifyGPU(t.Context(), g), "0000:18:00.0", "GPU-other", "GPU-0")
	device.errs["UUID"] = gpu.ErrLost
	if err := s.VerifyGPU(t.Context(), g); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("lost: got %v, want %v", err, gpu.ErrLost)
	}
	absent := &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0xff}, UUID: "GPU-0"}
	if err := s.VerifyGPU(t.Context(), absent); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("absent: got %v, want %v", err, gpu.ErrNotFound)
	}
}

func TestProcesses(t *testing.T) {
	device := h100(0)
	device.pids = []int{7, 42}
	s := openFake(t, &fakeLibrary{devices: []*fakeDevice{device}})
	got, err := s.Processes(t.Context(), s.Node().GPUs[0].PCI)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{7, 42}, got); diff != "" {
		t.Errorf("processes (-want +got):\n%s", diff)
	}
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
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
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
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("not an ELF file"), 0o600); err != nil {
			t.Fatal(err)
		}
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
