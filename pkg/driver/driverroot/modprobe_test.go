// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestCommands(t *testing.T) {
	tests := map[string]struct {
		nodes Nodes
		want  [][]string
	}{
		"nothing": {Nodes{}, nil},
		"uvm":     {Nodes{UVM: true}, [][]string{{"-c", "0", "-u"}}},
		"control": {Nodes{Control: true}, [][]string{{"-c", "255"}}},
		"GPUs":    {Nodes{GPUs: []int{0, 3}}, [][]string{{"-c", "0", "-c", "3"}}},
		"all":     {Nodes{Control: true, UVM: true, GPUs: []int{1}}, [][]string{{"-c", "255", "-c", "1"}, {"-c", "0", "-u"}}},
		"capabilities": {
			Nodes{UVM: true, Capabilities: []string{"driver/nvidia/capabilities/gpu0/mig/gi1/access", "driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access"}},
			[][]string{{"-c", "0", "-u"}, {
				"-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access",
			}},
		},
		"too many GPU": {Nodes{GPUs: make([]int, 100)}, [][]string{strings.Fields(strings.Repeat("-c 0 ", maxMinors))}},
	}
	for name, tt := range tests {
		equal(t, name+": commands", tt.want, tt.nodes.commands())
	}
}

// modprobe puts an nvidia-modprobe below a root that writes down how it was called.
func modprobe(t *testing.T, root, exit string) (calls string) {
	t.Helper()
	calls = filepath.Join(root, "calls")
	text := "#!/bin/sh\necho \"$*\" >>" + calls + "\necho no such module >&2\nexit " + exit + "\n"
	lay(t, root, "usr/bin/")
	must(t, os.WriteFile(filepath.Join(root, "usr/bin/nvidia-modprobe"), []byte(text), 0o700))
	return calls
}

func TestCreateNodes(t *testing.T) {
	root := t.TempDir()
	calls := modprobe(t, root, "0")
	must(t, (Root{Host: root, Here: root}).CreateNodes(t.Context(), "/proc", Nodes{UVM: true, Control: true}))
	if got, err := os.ReadFile(calls); err != nil || string(got) != "-c 255\n-c 0 -u\n" {
		t.Errorf("calls %q, %v", got, err)
	}
	modprobe(t, root, "1")
	err := (Root{Host: root, Here: root}).CreateNodes(t.Context(), "/proc", Nodes{UVM: true})
	if err == nil || !strings.Contains(err.Error(), "no such module") {
		t.Errorf("got %v, want an error with what the program said", err)
	}
	empty := t.TempDir()
	if err := (Root{Host: empty, Here: empty}).CreateNodes(t.Context(), "/proc", Nodes{UVM: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: got %v, want %v", err, os.ErrNotExist)
	}
}

// inNewMountNamespace runs do on a thread that is in a mount namespace of its own.
func inNewMountNamespace(do func() error) error {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
		return err
	}
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return err
	}
	return do()
}

// A process that sees the host's files elsewhere runs the program in the mount namespace of process 1: there alone the
// host's paths lead to the driver.
func TestCreateNodes_HostMountNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may enter a mount namespace")
	}
	dir := t.TempDir()
	host, real := filepath.Join(dir, "host"), filepath.Join(dir, "real")
	lay(t, dir, "host/", "real/")
	calls := modprobe(t, real, "0")
	// The other namespace sees what is in real at host.
	init := exec.CommandContext(t.Context(), "sleep", "300")
	started := make(chan error, 1)
	go func() {
		started <- inNewMountNamespace(func() error {
			if err := syscall.Mount(real, host, "", syscall.MS_BIND, ""); err != nil {
				return err
			}
			return init.Start()
		})
	}()
	if err := <-started; err != nil {
		t.Skipf("no mount namespace can be made here: %v", err)
	}
	defer func() { _ = init.Process.Kill(); _ = init.Wait() }()
	procfs := filepath.Join(dir, "proc/1/ns")
	must(t, errors.Join(os.MkdirAll(procfs, 0o700),
		os.Symlink("/proc/"+strconv.Itoa(init.Process.Pid)+"/ns/mnt", filepath.Join(procfs, "mnt"))))
	must(t, (Root{Host: host, Here: filepath.Join(dir, "seen")}).CreateNodes(t.Context(), filepath.Join(dir, "proc"),
		Nodes{UVM: true}))
	if got, err := os.ReadFile(calls); err != nil || string(got) != "-c 0 -u\n" {
		t.Errorf("calls %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(host, "usr")); err == nil {
		t.Error("the test's own mount namespace was changed")
	}
	err := (Root{Host: host, Here: filepath.Join(dir, "seen")}).CreateNodes(t.Context(), t.TempDir(), Nodes{UVM: true})
	if err == nil || !strings.Contains(err.Error(), "mount namespace") {
		t.Errorf("no process 1: got %v, want an error that says that its mount namespace cannot be entered", err)
	}
}
