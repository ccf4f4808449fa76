// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMemoryLimits(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	if _, err := Create(root, "hgx-h100", WithoutDeviceNodes(), WithDriverVersion("615.12")); err != nil {
		t.Fatal(err)
	}
	n := openNode(t, root)
	d := n.Device(2)
	cgroup := t.TempDir()
	total := d.board.MemoryMiB << 20
	tests := []struct {
		name       string
		cgroup     string
		soft, hard uint64
		want       int
	}{
		{"soft over hard", cgroup, 2, 1, CodeInvalidArgument},
		{"hard over total", cgroup, 1, total + 1, CodeInvalidArgument},
		{"soft over total", cgroup, total + 1, NoMemoryLimit, CodeInvalidArgument},
		{"no cgroup", "", 1, 2, CodeInvalidArgument},
		{"a cgroup that is not there", cgroup + "/x", 1, 2, CodeOperatingSystem},
		{"all", cgroup, total, total, CodeSuccess},
		{"no hard limit", cgroup, 1, NoMemoryLimit, CodeSuccess},
		{"the last", cgroup, 1 << 30, 2 << 30, CodeSuccess},
	}
	for _, tt := range tests {
		err := d.Memory().SetMemoryLimits(tt.cgroup, tt.soft, tt.hard)
		if (err == nil) != (tt.want == CodeSuccess) || err != nil && !isCode(err, tt.want) {
			t.Errorf("%s: %v, want %d", tt.name, err, tt.want)
		}
	}
	other := openNode(t, root)
	if soft, hard, used, err := other.Device(2).Memory().MemoryLimits(cgroup); soft != 1<<30 || hard != 2<<30 || used != 0 || err != nil {
		t.Errorf("limits = %d, %d, %d, %v", soft, hard, used, err)
	}
	if _, _, _, err := other.Device(1).Memory().MemoryLimits(cgroup); !isCode(err, CodeNotFound) {
		t.Errorf("limits of another GPU = %v", err)
	}
	st, err := n.Status()
	want := []LimitStatus{{Cgroup: cgroup, Soft: 1 << 30, Hard: 2 << 30}}
	if diff := cmp.Diff(want, st.GPUs[2].Limits); diff != "" || err != nil {
		t.Errorf("status, %v (-want +got):\n%s", err, diff)
	}
	must(t, d.Memory().SetMemoryLimits(cgroup, 0, NoMemoryLimit))
	if err := os.WriteFile(filepath.Join(cgroup, "dmem.capacity"), nil, 0o600); err != nil { // the root of a kernel with dmem
		t.Fatal(err)
	}
	if _, _, _, err := d.Memory().MemoryLimits(cgroup); !isCode(err, CodeNotSupported) {
		t.Errorf("limits of the root = %v", err)
	}
	if err := d.Memory().SetMemoryLimits(cgroup, 0, total); !isCode(err, CodeNotFound) {
		t.Errorf("the root is limited: %v", err)
	}
	must(t, os.Remove(filepath.Join(cgroup, "dmem.capacity")))
	if _, _, _, err := d.Memory().MemoryLimits(cgroup); !isCode(err, CodeNotFound) {
		t.Errorf("limits after they were ended = %v", err)
	}
}

// The limits of a cgroup go with it, and one that is made again has none.
func TestMemoryLimits_CgroupRemoved(t *testing.T) {
	n := testNode(t, "hgx-h100", WithDriverVersion("620.01"))
	d := n.Device(0)
	dir := t.TempDir()
	gone, kept := filepath.Join(dir, "gone"), filepath.Join(dir, "kept")
	for _, cgroup := range []string{kept, gone} {
		must(t, os.Mkdir(cgroup, 0o700))
		must(t, d.Memory().SetMemoryLimits(cgroup, 0, 1<<20))
	}
	must(t, os.Rename(gone, filepath.Join(dir, "moved"))) // removed, it would give its inode to the next one
	if _, _, _, err := d.Memory().MemoryLimits(gone); !isCode(err, CodeOperatingSystem) {
		t.Errorf("limits of a cgroup that is gone = %v", err)
	}
	for _, name := range []string{"another", "gone"} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	if _, _, _, err := d.Memory().MemoryLimits(gone); !isCode(err, CodeNotFound) {
		t.Errorf("limits of a cgroup that was made again = %v", err)
	}
	must(t, d.Memory().SetMemoryLimits(filepath.Join(dir, "another"), 0, 1<<20))
	st, err := n.gpus[0].load()
	if err != nil || len(st.Limits) != 2 {
		t.Errorf("kept: %v, %v", st.Limits, err)
	}
}

func TestMemoryLimits_Unsupported(t *testing.T) {
	cgroup := t.TempDir()
	for version, want := range map[string]int{"580.95.05": CodeNotSupported, "614.99": CodeNotSupported, "x": CodeNotSupported, "615.1": CodeSuccess} {
		d := testNode(t, "hgx-h100", WithDriverVersion(version)).Device(0)
		err := d.Memory().SetMemoryLimits(cgroup, 0, 1<<20)
		if (err == nil) != (want == CodeSuccess) || err != nil && !isCode(err, want) {
			t.Errorf("driver %s: %v, want %d", version, err, want)
		}
		if _, _, _, err := d.Memory().MemoryLimits(cgroup); want == CodeNotSupported && !isCode(err, want) {
			t.Errorf("driver %s: reading: %v", version, err)
		}
	}
	d := testNode(t, "hgx-h100", WithDriverVersion("615.1")).Device(0)
	intoMIG(t, d)
	if err := d.Memory().SetMemoryLimits(cgroup, 0, 1<<20); !isCode(err, CodeNotSupported) {
		t.Errorf("a GPU in MIG mode: %v", err)
	}
}
