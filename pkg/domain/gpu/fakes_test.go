// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// boardModels are node models, by the boards they have; boards without one are put into a node of another model.
var boardModels = map[string]string{
	"A30": "a30", "A100-80": "dgx-a100", "H100-80": "hgx-h100", "H200": "hgx-h200", "B200": "hgx-b200", "GB200": "gb200-nvl72",
	"B300": "hgx-b300", "GB300": "gb300-nvl72", "GH200": "gh200",
	"RTX-PRO-6000": "rtx-pro-6000",
}

// partitionable lists the boards whose geometry is known, by name.
func partitionable(t *testing.T) []string {
	t.Helper()
	boards, err := sim.Boards()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range boards {
		if boards[i].MIG != nil {
			names = append(names, boards[i].Name)
		}
	}
	return names
}

// board is a simulated GPU in MIG mode, and what discovery finds of it.
func board(t *testing.T, name string) (*sim.Device, *gpu.GPU) {
	t.Helper()
	node := boardNode(t, name)
	if err := node.Init(); err != nil {
		t.Fatal(err)
	}
	device := node.Device(0)
	activation, err := device.MIG().SetMIGMode(true)
	if err != nil {
		t.Fatal(err)
	}
	if activation != nil {
		if err := node.Hardware().Reset(0); err != nil {
			t.Fatal(err)
		}
	}
	session, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	g := session.Node().GPUs[0]
	if g.Index != 0 || !g.MIG.Enabled {
		t.Fatalf("board %s: GPU %d, MIG mode %t, want GPU 0 in MIG mode", name, g.Index, g.MIG.Enabled)
	}
	return device, &g
}

// boardNode is a node with such boards, in memory where a model has them.
func boardNode(t *testing.T, name string) *sim.Node {
	t.Helper()
	if model, ok := boardModels[name]; ok {
		node, err := sim.New(model)
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	root := filepath.Join(t.TempDir(), "node")
	if _, err := sim.Create(root, "hgx-h100", sim.WithoutDeviceNodes()); err != nil {
		t.Fatal(err)
	}
	b, err := sim.FindBoard(name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "var/lib/nvml-sim/node.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	spec := map[string]any{}
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	spec["boards"] = []*sim.Board{b}
	if data, err = json.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	node, err := sim.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// partitionsOf are a GPU's shapes less the whole.
func partitionsOf(g *gpu.GPU) []gpu.Shape {
	var parts []gpu.Shape
	for _, s := range g.Shapes() {
		if s.IsPartition() {
			parts = append(parts, s)
		}
	}
	return parts
}

// budget is what is left of a GPU's counters.
type budget struct {
	left     map[string]int64
	consumes map[string][]gpu.Counter // by name of shape
}

func budgetOf(g *gpu.GPU) budget {
	b := budget{map[string]int64{}, map[string][]gpu.Counter{}}
	for _, c := range g.Counters() {
		b.left[c.Name] = c.Value
	}
	for _, s := range append(partitionsOf(g), g.Whole()) {
		b.consumes[s.Name()] = s.Consumes()
	}
	return b
}

// lacks lists the counters of which there is not enough for a shape.
func (b budget) lacks(s gpu.Shape) []string {
	var names []string
	for _, c := range b.consumes[s.Name()] {
		if b.left[c.Name] < c.Value {
			names = append(names, c.Name)
		}
	}
	return names
}

func (b budget) take(s gpu.Shape) {
	for _, c := range b.consumes[s.Name()] {
		b.left[c.Name] -= c.Value
	}
}

func (b budget) giveBack(s gpu.Shape) {
	for _, c := range b.consumes[s.Name()] {
		b.left[c.Name] += c.Value
	}
}
