// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

func procOf(t *testing.T, cgroup string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "proc", "42")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o600); err != nil {
		t.Fatal(err)
	}
	groups := filepath.Join(root, "sys/fs/cgroup")
	if err := errors.Join(os.MkdirAll(groups, 0o700), os.WriteFile(filepath.Join(groups, "cgroup.controllers"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestRun_CgroupLimit(t *testing.T) {
	var got []string
	limit := func(opts nvml.Options, of nvml.LimitedGPU, cgroup string, limit uint64) error {
		got = append(got, fmt.Sprint(opts.DriverRoot, " ", of.PCI, " ", of.UUID, " ", cgroup, " ", limit))
		return nil
	}
	root := procOf(t, "12:devices:/elsewhere\n0::/kubepods.slice/pod1/c1\n")
	args := []string{"--driver-root=/run/nvidia/driver/", "--gpu=GPU-1", "--pci=0000:1b:00.0", "--limit=1024"}
	if err := run(args, strings.NewReader(`{"ociVersion":"1.0.2","id":"x","pid":42,"bundle":"/b"}`), root, limit); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/run/nvidia/driver 0000:1b:00.0 GPU-1 /sys/fs/cgroup/kubepods.slice/pod1/c1 1024"}, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func TestRun_Errors(t *testing.T) {
	good := []string{"--gpu=GPU-1", "--pci=0000:1b:00.0", "--limit=1024"}
	failed := errors.New("the driver is not loaded")
	tests := map[string]struct {
		args  []string
		state string
		proc  string
		limit error
		want  string
	}{
		"no GPU":          {[]string{"--limit=1"}, `{"pid":42}`, "0::/a\n", nil, "--gpu UUID"},
		"no limit":        {[]string{"--gpu=GPU-1"}, `{"pid":42}`, "0::/a\n", nil, "--limit BYTES"},
		"negative limit":  {[]string{"--gpu=GPU-1", "--limit=-1"}, `{"pid":42}`, "0::/a\n", nil, "limit"},
		"no address":      {[]string{"--gpu=GPU-1", "--limit=1024"}, `{"pid":42}`, "0::/a\n", nil, "--pci"},
		"unknown flag":    {append(good, "--share"), `{"pid":42}`, "0::/a\n", nil, "share"},
		"more arguments":  {append(good, "x"), `{"pid":42}`, "0::/a\n", nil, "use --driver-root"},
		"no state":        {good, "", "0::/a\n", nil, "read the container's state"},
		"no pid":          {good, "{}", "0::/a\n", nil, "no pid"},
		"too much state":  {good, strings.Repeat(" ", maxState+1), "0::/a\n", nil, "more than"},
		"another process": {good, `{"pid":43}`, "0::/a\n", nil, "find the container's cgroup"},
		"cgroup v1":       {good, `{"pid":42}`, "3:memory:/a\n", nil, "no cgroup v2"},
		"root cgroup":     {good, `{"pid":42}`, "0::/\n", nil, "no cgroup of its own"},
		"driver":          {good, `{"pid":42}`, "0::/a\n", failed, "not loaded"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(tt.args, strings.NewReader(tt.state), procOf(t, tt.proc),
				func(nvml.Options, nvml.LimitedGPU, string, uint64) error { return tt.limit })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error that says %q", err, tt.want)
			}
		})
	}
}

// A runtime may leave the kernel's controller off for its containers.
func TestRun_NoController(t *testing.T) {
	root := procOf(t, "0::/pod/c1\n")
	refused := errors.New("not found")
	says := func() string {
		return fmt.Sprint(run([]string{"--gpu=GPU-1", "--pci=0000:1b:00.0", "--limit=1024"}, strings.NewReader(`{"pid":42}`), root,
			func(nvml.Options, nvml.LimitedGPU, string, uint64) error { return refused }))
	}
	hierarchy := filepath.Join(root, "sys/fs/cgroup")
	touch := func(name string) {
		t.Helper()
		path := filepath.Join(hierarchy, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if got := says(); got != "not found" {
		t.Errorf("without the controller: %q", got)
	}
	touch("dmem.capacity")
	if got := says(); !strings.Contains(got, "/sys/fs/cgroup/pod/c1 has no dmem files") || !strings.Contains(got, "not found") {
		t.Errorf("with the controller, not for the container: %q", got)
	}
	touch("pod/c1/dmem.max")
	if got := says(); got != "not found" {
		t.Errorf("with the controller: %q", got)
	}
}

// What a container's cgroup is called is the runtime's doing, but no name leads out of the hierarchy.
func TestCgroupOf_PathTraversal(t *testing.T) {
	got, err := cgroupOf(procOf(t, "0::/../../../etc\n"), 42)
	if err != nil || got != "/sys/fs/cgroup/etc" {
		t.Errorf("got %q, %v, want /sys/fs/cgroup/etc", got, err)
	}
}

// Where both kinds of hierarchies are mounted, as systemd can have it, there is nothing to limit a container by.
func TestCgroupOf_HybridHierarchy(t *testing.T) {
	root := procOf(t, "0::/a\n")
	if err := os.Remove(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroupOf(root, 42); err == nil || !strings.Contains(err.Error(), "no cgroup v2") {
		t.Errorf("got %v, want that there is no cgroup v2", err)
	}
}

func FuzzContainerPID(f *testing.F) {
	f.Add(`{"pid":42}`)
	f.Add(`{"pid":-1}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, state string) {
		if pid, err := containerPID(strings.NewReader(state)); err == nil && pid <= 0 {
			t.Errorf("got pid %d", pid)
		}
	})
}
