// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// Fleet is an overview of a cluster's nodes. Its JSON is an interface: fields may be added, never renamed.
type Fleet struct {
	Driver string `json:"driver"`
	// Nodes with ResourceSlices of the driver, in order of names.
	Nodes  []FleetNode `json:"nodes"`
	Totals Summary     `json:"totals"`
	// Problems are those of the overview.
	Problems []string `json:"problems,omitempty"`
}

// FleetNode is one node of a Fleet.
type FleetNode struct {
	Node    string `json:"node"`
	Product string `json:"product,omitempty"`
	// MemoryBytes and MIG are those of its first GPU, Clique is its NVLink domain of several nodes, "CLUSTER.CLIQUE".
	MemoryBytes   int64  `json:"memoryBytes,omitempty"`
	MIG           string `json:"mig,omitempty"`
	Clique        string `json:"clique,omitempty"`
	DriverVersion string `json:"driverVersion,omitempty"`
	CUDAVersion   string `json:"cudaVersion,omitempty"`
	// State is empty for a node that takes pods: else "not ready", "cordoned" or "no Node object", and nothing of it is free.
	State string `json:"state,omitempty"`
	Summary
	// Problems of the node, such as an incomplete pool, which does not count.
	Problems []string `json:"problems,omitempty"`
}

// Summary counts GPUs. Each is free, whole, partitioned, shared or closed; any of them may be unhealthy, too.
type Summary struct {
	GPUs int `json:"gpus"`
	// Free GPUs have no allocation, Whole are allocated to one claim, Partitioned and Shared in parts. Closed have no allocation and
	// get none: all their devices are tainted, their node takes no pods, or the scheduler allocates nothing from its pool.
	Free        int `json:"free"`
	Whole       int `json:"whole"`
	Partitioned int `json:"partitioned"`
	Shared      int `json:"shared"`
	Closed      int `json:"closed"`
	Unhealthy   int `json:"unhealthy"`
	// Fits are the devices that claims can get now, each kind counted as if it were the only one.
	Fits []Amount `json:"fits"`
	// Fragmentation is the share of free placement units on GPUs that are in use: what is free and not allocatable as a whole GPU.
	Fragmentation float64 `json:"fragmentation"`
}

// add adds another summary, except fragmentation, which is no sum.
func (s *Summary) add(o *Summary) {
	s.GPUs += o.GPUs
	s.Free += o.Free
	s.Whole += o.Whole
	s.Partitioned += o.Partitioned
	s.Shared += o.Shared
	s.Closed += o.Closed
	s.Unhealthy += o.Unhealthy
	for _, a := range o.Fits {
		s.fits(a)
	}
}

func (s *Summary) fits(a Amount) {
	at := slices.IndexFunc(s.Fits, func(have Amount) bool { return have.Type == a.Type && have.Profile == a.Profile })
	if at < 0 {
		s.Fits = append(s.Fits, a)
		return
	}
	s.Fits[at].Count += a.Count
}

// SliceSet keeps what a Fleet needs of the ResourceSlices of many nodes.
type SliceSet struct{ *resourcepool.SliceSet }

// NewSliceSet creates an empty set.
func NewSliceSet() *SliceSet {
	return &SliceSet{resourcepool.NewSliceSet(resourcepool.NewAttributes(
		"type", "profile", "productName", "index", "placementStart", "placementSize", "pciBusID", "migCapable", "driverVersion",
		"cudaDriverVersion", "fabricClusterUUID", "fabricCliqueID"))}
}

// AddForOverview adds a slice.
func (set *SliceSet) AddForOverview(s *resourceapi.ResourceSlice) error {
	_, err := set.Add(s)
	return err
}

// Packer is the state of a node for the measure of packing.
type Packer func(Pool) (*packing.State, error)

// OfFleet is the overview of the nodes in a set. Claims and rules are those of the cluster, states those of its nodes (NodeState);
// nil if they are not known.
func OfFleet(driver string, set *SliceSet, claims []resourceapi.ResourceClaim, rules []resourceapi.DeviceTaintRule,
	states map[string]string, pack Packer,
) *Fleet {
	f := &Fleet{Driver: driver, Nodes: []FleetNode{}, Totals: Summary{Fits: []Amount{}}}
	byPool := map[string][]resourceapi.ResourceClaim{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		var names []string
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == driver && !slices.Contains(names, r.Pool) {
				names = append(names, r.Pool)
				byPool[r.Pool] = append(byPool[r.Pool], c)
			}
		}
	}
	packed := []*packing.State{}
	for _, node := range set.Nodes() {
		p := Pool{Node: node, Driver: driver, Rules: rules}
		var poolNames []string
		for _, s := range set.Of(node) {
			if p.Slices = append(p.Slices, *s); !slices.Contains(poolNames, s.Spec.Pool.Name) {
				poolNames = append(poolNames, s.Spec.Pool.Name)
				p.Claims = append(p.Claims, byPool[s.Spec.Pool.Name]...)
			}
		}
		n, state := summarize(p, pack)
		if known, ok := states[node]; states != nil && (!ok || known != "") {
			n.close(cmp.Or(known, NodeUnknown))
		} else if state != nil {
			packed = append(packed, state)
		}
		f.Nodes = append(f.Nodes, n)
		f.Totals.add(&n.Summary)
	}
	InOrder(f.Totals.Fits)
	f.Totals.Fragmentation = packing.Fragmentation(packed...)
	return f
}

// summarize counts the GPUs of a node. The state is nil if the scheduler allocates nothing from its pool.
func summarize(p Pool, pack Packer) (FleetNode, *packing.State) {
	n := FleetNode{Node: p.Node, Summary: Summary{Fits: []Amount{}}}
	view, err := OfPool(p)
	if err != nil {
		n.Problems = append(n.Problems, err.Error())
		return n, nil
	}
	n.DriverVersion, n.CUDAVersion, n.Problems = view.DriverVersion, view.CUDAVersion, view.Problems
	for i := range view.GPUs {
		g := &view.GPUs[i]
		n.describe(g)
		free := n.Free
		n.count(g)
		if n.Free > free && view.overdrawn && len(g.Free) == 0 {
			n.Free, n.Closed = free, n.Closed+1
		}
	}
	InOrder(n.Fits)
	if view.overdrawn {
		return n, nil
	}
	state, err := pack(p)
	if err != nil {
		n.close("")
		n.Problems = append(n.Problems, fmt.Sprintf("its fragmentation is unknown: %v", err))
		return n, nil
	}
	n.Fragmentation = packing.Fragmentation(state)
	return n, state
}

// describe takes from a GPU what earlier ones have not.
func (n *FleetNode) describe(g *GPU) {
	n.Product, n.MIG, n.MemoryBytes = cmp.Or(n.Product, g.Product), cmp.Or(n.MIG, g.MIG), cmp.Or(n.MemoryBytes, g.MemoryBytes)
	if g.FabricClusterUUID != "" && g.FabricCliqueID != nil {
		n.Clique = cmp.Or(n.Clique, g.FabricClusterUUID+"."+strconv.Itoa(*g.FabricCliqueID))
	}
}

// close leaves nothing free on a node that takes no pods, or none with devices.
func (n *FleetNode) close(state string) {
	n.State, n.Fits, n.Fragmentation = state, []Amount{}, 0
	n.Free, n.Closed = 0, n.Closed+n.Free
}

// IsClosed reports whether taints close all of a GPU.
func (g *GPU) IsClosed() bool {
	return len(g.Shapes) > 0 && !slices.ContainsFunc(g.Shapes, func(s Shape) bool { return s.State != Tainted })
}

func (s *Summary) count(g *GPU) {
	s.GPUs++
	is := func(kind func(*Shape) bool) bool {
		return slices.ContainsFunc(g.Shapes, func(s Shape) bool { return s.isAllocated() && kind(&s) })
	}
	switch {
	case is((*Shape).isPartition):
		s.Partitioned++
	case is((*Shape).isShared):
		s.Shared++
	case is(func(*Shape) bool { return true }):
		s.Whole++
	case g.IsClosed():
		s.Closed++
	default:
		s.Free++
	}
	if slices.ContainsFunc(g.Shapes, func(s Shape) bool {
		return slices.ContainsFunc(s.Taints, func(t Taint) bool { return t.Key == nodeslices.TaintUnhealthy })
	}) {
		s.Unhealthy++
	}
	for _, a := range g.Free {
		s.fits(a)
	}
}

// Print writes a line for each node, and the totals; several lines on a narrow terminal.
func (f *Fleet) Print(w io.Writer, o Options) error {
	if len(f.Nodes) == 0 {
		return errors.New("no node has ResourceSlices of driver " + f.Driver + ": no plugin runs, or none finds a GPU: see its pods' logs")
	}
	p := &printer{fit: o.Width}
	for _, problem := range f.Problems {
		p.linef("PROBLEM: %s", problem)
	}
	head, facts := []string{"NODE", "PRODUCT"}, func(*FleetNode) []string { return nil }
	if o.Wide {
		head, facts = append(head, "MEMORY", "MIG", "DRIVER", "CUDA", "CLIQUE"), (*FleetNode).facts
	}
	rows := [][]string{append(head, "GPUS", "FREE", "WHOLE", "PARTITIONED", "SHARED", "CLOSED", "UNHEALTHY", "FRAGMENTED", "FITS")}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		row := n.row(append([]string{n.Node, orDash(n.Product)}, facts(n)...)...)
		if n.State != "" {
			row[len(row)-1] = "nothing: " + n.State
		}
		rows = append(rows, row)
	}
	total := make([]string, slices.Index(rows[0], "GPUS"))
	total[0] = count(int64(len(f.Nodes)), "node", "nodes")
	rows = append(rows, f.Totals.row(total...))
	p.table(withoutZeros(rows, slices.Index(rows[0], "WHOLE"), slices.Index(rows[0], "FITS"), o.Width))
	for i := range f.Nodes {
		for _, problem := range f.Nodes[i].Problems {
			p.linef("PROBLEM: %s: %s", f.Nodes[i].Node, problem)
		}
	}
	if _, err := io.WriteString(w, p.String()); err != nil {
		return fmt.Errorf("print the nodes: %w", err)
	}
	return nil
}

// facts are columns of the wide table.
func (n *FleetNode) facts() []string {
	return []string{orDash(gibibytes(n.MemoryBytes)), orDash(n.MIG), orDash(n.DriverVersion), orDash(n.CUDAVersion), orDash(n.Clique)}
}

// row is a line of the table, after its first columns.
func (s *Summary) row(first ...string) []string {
	row := first
	for _, n := range []int{s.GPUs, s.Free, s.Whole, s.Partitioned, s.Shared, s.Closed, s.Unhealthy} {
		row = append(row, strconv.Itoa(n))
	}
	var fits []string
	for _, a := range s.Fits {
		switch a.Type {
		case typeGPU:
			fits = append(fits, fmt.Sprintf("%d whole", a.Count))
		default:
			fits = append(fits, a.String())
		}
	}
	return append(row, strconv.FormatFloat(100*s.Fragmentation, 'f', 0, 64)+"%", orDash(strings.Join(fits, ", ")))
}
