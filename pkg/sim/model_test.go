// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// testNode creates a node in memory, with a session.
func testNode(t *testing.T, model string, opts ...Option) *Node {
	t.Helper()
	n, err := New(model, opts...)
	must(t, err)
	must(t, n.Init())
	return n
}

func TestNodeModels(t *testing.T) {
	want := map[string]int{
		"a100-pcie-nvlink-pairs": 4, "a30": 2, "dgx-a100": 8, "gb200-nvl4": 4, "gb200-nvl72": 4, "gb300-nvl72": 4, "gh200": 1,
		"hgx-b200": 8, "hgx-b300": 8, "hgx-h100": 8,
		"hgx-h200": 8, "l40s": 4, "rtx-pro-6000": 8, "t4": 1,
	}
	got := map[string]int{}
	for _, name := range NodeModels() {
		n := testNode(t, name)
		count, err := n.DeviceCount()
		must(t, err)
		got[name] = count
		if ModelDescription(name) == "" {
			t.Errorf("%s has no description", name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GPUs by model (-want +got):\n%s", diff)
	}
}

func TestNodeModels_Unknown(t *testing.T) {
	_, err := New("hgx-h1000")
	if err == nil || !strings.Contains(err.Error(), "hgx-h100, hgx-h200") {
		t.Errorf("New = %v, want the list of models", err)
	}
}

func TestIdentities(t *testing.T) {
	seen := map[string]string{}
	for _, name := range NodeModels() {
		for _, seed := range []string{"", "other"} {
			n, err := New(name, WithSeed(seed))
			must(t, err)
			for i := range n.spec.GPUs {
				key := name + "/" + seed
				if other, taken := seen[n.spec.GPUs[i].UUID]; taken {
					t.Errorf("%s and %s share UUID %s", key, other, n.spec.GPUs[i].UUID)
				}
				seen[n.spec.GPUs[i].UUID] = key
			}
		}
	}
	again := testNode(t, "hgx-h100")
	uuid, err := again.Device(0).UUID()
	if err != nil || uuid != "GPU-5d4ce926-d7c7-5db4-903a-b4ee017f7df2" {
		t.Errorf("UUID of the first GPU of hgx-h100 = %s, %v: has it changed?", uuid, err)
	}
}

func TestMinors(t *testing.T) {
	differ := 0
	for _, name := range NodeModels() {
		n := testNode(t, name)
		minors := map[int]bool{}
		for i := range n.devices {
			minor, err := n.Device(i).MinorNumber()
			if err != nil || minor < 0 || minor >= len(n.devices) || minors[minor] {
				t.Errorf("%s: minor of GPU %d = %d, %v", name, i, minor, err)
			}
			minors[minor] = true
			if minor != i {
				differ++
			}
		}
	}
	if differ == 0 {
		t.Error("minors equal indexes on every model")
	}
}

func TestSysfs(t *testing.T) {
	for _, name := range NodeModels() {
		t.Run(name, func(t *testing.T) {
			n := testNode(t, name)
			sys := n.Sysfs()
			if err := fstest.TestFS(sys, "bus/pci/devices"); err != nil {
				t.Error(err)
			}
			for i := range n.spec.GPUs {
				checkPCIDirectory(t, sys, &n.spec.GPUs[i].pciEntry)
			}
			checkFunctionsAreOnce(t, n.spec)
		})
	}
}

// checkPCIDirectory checks that a GPU is found as drivers find it.
func checkPCIDirectory(t *testing.T, sys fs.ReadLinkFS, e *pciEntry) {
	t.Helper()
	link := "bus/pci/devices/" + e.bdf()
	target, err := sys.ReadLink(link)
	must(t, err)
	if want := "../../../devices/" + e.Path; target != want {
		t.Errorf("%s -> %s, want %s", link, target, want)
	}
	vendor, err := fs.ReadFile(sys, link+"/vendor")
	if err != nil || string(vendor) != "0x10de\n" {
		t.Errorf("vendor of %s = %q, %v", e.bdf(), vendor, err)
	}
	if root := strings.Split(e.Path, "/")[0]; !strings.HasPrefix(root, "pci") {
		t.Errorf("%s lies under %s, which is no root complex", e.bdf(), root)
	}
}

// checkFunctionsAreOnce checks that no address is used twice, and that the parts of a path are addresses.
func checkFunctionsAreOnce(t *testing.T, s *spec) {
	t.Helper()
	at := map[string]string{}
	var entries []*pciEntry
	for i := range s.GPUs {
		entries = append(entries, &s.GPUs[i].pciEntry)
	}
	for i := range s.NVSwitches {
		entries = append(entries, &s.NVSwitches[i])
	}
	for i := range s.Others {
		entries = append(entries, &s.Others[i])
	}
	for _, e := range entries {
		parts := strings.Split(e.Path, "/")
		for i := 1; i < len(parts); i++ {
			if _, err := gpu.ParsePCIAddress(parts[i]); err != nil {
				t.Error(err)
			}
			p := path.Join(parts[:i+1]...)
			if other, taken := at[parts[i]]; taken && other != p {
				t.Errorf("%s is both %s and %s", parts[i], other, p)
			}
			at[parts[i]] = p
		}
	}
}
