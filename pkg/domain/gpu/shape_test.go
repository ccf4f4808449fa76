// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func modelNode(t *testing.T, model string) *gpu.Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	node := *session.Node()
	return &node
}

func TestShape_NamesAreParsed(t *testing.T) {
	for _, name := range partitionable(t) {
		_, g := board(t, name)
		for _, s := range append(partitionsOf(g), g.Whole(), gpu.Shape{GPU: g, Share: gpu.MPS}) {
			id, start, ok := gpu.ParsePartitionName(s.Name())
			if ok != s.IsPartition() || ok && (id != s.Profile.ID || start != s.Placement.Start) {
				t.Errorf("%s: got profile %d at %d, a partition: %t", s.Name(), id, start, ok)
			}
		}
	}
	for _, name := range []string{"gpu-0-mig-1g10gb-19-6", "gpu-0000-1b-00-0-mig-19", "gpu-0000-1b-00-0-mig-19-6-1", "gpu-0000-1b-00-0-mig--1-6", "mig-19-6", ""} {
		if _, _, ok := gpu.ParsePartitionName(name); ok {
			t.Errorf("%q is taken for the name of a partition", name)
		}
	}
}

func TestShape_NameLength(t *testing.T) {
	p := gpu.Profile{ID: 999, Name: "1g.10gb", Placements: []gpu.Placement{{Start: 99, Size: 1}}}
	g := gpu.GPU{PCI: gpu.PCIAddress{Domain: 1<<32 - 1, Bus: 255, Device: 31, Function: 7}, MIG: gpu.MIG{Profiles: []gpu.Profile{p}, Slices: 100}}
	for _, s := range g.Shapes() {
		if msgs := validation.IsDNS1123Label(s.Name()); len(msgs) > 0 {
			t.Errorf("name %q: %v", s.Name(), msgs)
		}
	}
}

func TestShapes_Profiles(t *testing.T) {
	type offered struct{ InCatalog, ByDefault bool }
	always, asked, never := offered{true, true}, offered{true, false}, offered{}
	tests := map[string]offered{
		"1g.10gb": always, "1g.10gb+me": always, "7g.80gb": always, "2g.48gb": always, "1g.24gb+gfx": asked, "4g.96gb+gfx": asked,
		"1g.24gb+me.all": asked, "2g.48gb+me.all": asked, "1g.24gb-me": asked, "2g.48gb-me": asked, "": never, "+me": never, "-me": never,
		"1g.10gb+": never, "1g.10gb+me+gfx": never, "1g.10gb-gfx": never,
	}
	for name, want := range tests {
		p := gpu.Profile{Name: name}
		if got := (offered{p.InCatalog(), p.ByDefault()}); got != want {
			t.Errorf("profile %q: got %+v, want %+v", name, got, want)
		}
	}
}

func TestShapes_EveryModel(t *testing.T) {
	want := map[string]string{
		"A30":          "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
		"A100-40":      "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
		"A100-80":      "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
		"H100-80":      "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
		"H100-94":      "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
		"H200":         "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
		"GH200":        "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
		"B200":         "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
		"B300":         "1g.34gb 1g.34gb+me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb",
		"GB300":        "1g.35gb 1g.35gb+me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb",
		"GB200":        "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
		"RTX-PRO-6000": "1g.24gb 1g.24gb+me (1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me) 2g.48gb (2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me) 4g.96gb (4g.96gb+gfx)",
	}
	got := map[string]string{}
	for _, name := range partitionable(t) {
		_, g := board(t, name)
		var list []string
		for i := range g.MIG.Profiles {
			switch p := &g.MIG.Profiles[i]; {
			case p.ByDefault():
				list = append(list, p.Name)
			case p.InCatalog():
				list = append(list, "("+p.Name+")")
			}
		}
		got[name] = strings.ReplaceAll(strings.Join(list, " "), ") (", " ")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("profiles offered (-want +got):\n%s", diff)
	}
}

func TestShapes_PendingMode(t *testing.T) {
	g := modelNode(t, "dgx-a100").GPUs[0]
	g.MIG.Pending = true
	if got := g.Shapes(); len(got) != 1 || got[0].IsPartition() {
		t.Errorf("got %d shapes, want the whole GPU only", len(got))
	}
}
