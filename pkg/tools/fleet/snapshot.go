// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Snapshot is the picture at one time. It does not change; what did not change since the snapshot before is the same pointer.
// Its JSON is an interface: fields and values may be added, never renamed.
type Snapshot struct {
	// Version grows by one with each snapshot.
	Version uint64 `json:"version"`
	// Nodes with GPUs, by name.
	Nodes []*Node `json:"nodes"`
	// Claims of the driver's devices, by namespace and name.
	Claims []*Claim `json:"claims"`
	Totals Totals   `json:"totals"`
	// Notices say what cannot be read and is missing here.
	Notices []string `json:"notices,omitempty"`
}

// Node is one node.
type Node struct {
	Name string `json:"name"`
	// State is empty for a node that takes pods: else "not ready", "cordoned" or "no Node object", and nothing of it is free.
	State string `json:"state,omitempty"`
	// Policy is the node's label for a policy.
	Policy string `json:"policy,omitempty"`
	// Taints of the Node keep away pods that do not tolerate them: "key=value:effect".
	Taints []string `json:"taints,omitempty"`
	// Problems are those of the whole node, such as a pool that is not complete.
	Problems []string `json:"problems,omitempty"`
	GPUs     []GPU    `json:"gpus"`
	// Free are the devices that the next claims can get, over all GPUs; counts of partitions are per profile.
	Free []inspect.Amount `json:"fits"`
	// Fragmentation is the share of the free units that lies on GPUs in use.
	Fragmentation float64 `json:"fragmentation"`
	// Version is that of the snapshot in which the node last changed.
	Version uint64 `json:"-"`

	left packing.Free
}

// HasProblem reports whether something is wrong with the node, other than that it was cordoned.
func (n *Node) HasProblem() bool {
	return len(n.Problems) > 0 || n.State != "" && n.State != inspect.NodeCordoned
}

// close leaves nothing free on a node that takes no pods, or none with devices.
func (n *Node) close() {
	n.Free, n.Fragmentation, n.left = []inspect.Amount{}, 0, packing.Free{}
	for i := range n.GPUs {
		if n.GPUs[i].Free = "nothing"; n.GPUs[i].Use == Unused {
			n.GPUs[i].Use = Closed
		}
	}
}

// GPU is one GPU.
type GPU struct {
	Name    string `json:"name"`
	Device  string `json:"device"`
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	// Units is how many placement units the bars cover; at least one.
	Units int `json:"units"`
	// Bars are the slice map: they cover the units in order.
	Bars []Bar `json:"bars"`
	Use  Use   `json:"use"`
	// Free describes the devices that the next claim can get.
	Free string `json:"free"`
	// Taints close devices to claims.
	Taints []inspect.Taint `json:"taints,omitempty"`
}

// Use says how a GPU is used.
type Use string

// The uses.
const (
	Unused      Use = "unused"
	Whole       Use = "whole"
	Partitioned Use = "partitioned"
	Shared      Use = "shared"
	// Closed GPUs have no allocation and get none: all their devices are tainted, or their node takes no pods.
	Closed Use = "closed"
)

// Claim is a claim that is allocated devices of the driver, or that waits for them.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is empty for a claim that does not exist.
	UID       string    `json:"uid"`
	Created   time.Time `json:"created"`
	Allocated bool      `json:"allocated"`
	// Deleting is set once the claim is deleted and still allocated or reserved.
	Deleting bool      `json:"deleting,omitempty"`
	Requests []Request `json:"requests"`
	Devices  []Device  `json:"devices,omitempty"`
	// Pods that the claim is reserved for; of one that is not allocated those that wait for it, where pods are watched.
	Pods []string `json:"pods,omitempty"`
	// ExtendedResources is set for what a pod requests as extended resources: the scheduler creates the claim together with its
	// allocation, so that this one does not exist. Its requests are named like the pod's containers.
	ExtendedResources bool `json:"extendedResources,omitempty"`
	// Missing is set for a claim that pods wait for and that does not exist. Template is the ResourceClaimTemplate from which it is to be
	// created; its name then lacks the end, and there are no requests if the template does not exist, either.
	Missing  bool   `json:"missing,omitempty"`
	Template string `json:"template,omitempty"`
	// Version is that of the snapshot in which the claim last changed.
	Version uint64 `json:"-"`
}

// Key is "namespace/name".
func (c *Claim) Key() string { return c.Namespace + "/" + c.Name }

// Request is a request of a claim, in words.
type Request struct {
	Name string `json:"name"`
	// Asks has an entry for each alternative: "gpu.cleave.dev", "2x mig-1g.10gb.cleave.dev".
	Asks []string `json:"asks"`
}

// Device is a device that a claim is allocated.
type Device struct {
	Request string `json:"request"`
	Node    string `json:"node,omitempty"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// UUID is the one that the driver wrote to the claim's status.
	UUID        string `json:"uuid,omitempty"`
	AdminAccess bool   `json:"adminAccess,omitempty"`
}

// Totals are those of all nodes.
type Totals struct {
	Nodes int `json:"nodes"`
	GPUs  int `json:"gpus"`
	// GPUs by use; Tainted are those with a taint, whatever their use.
	Unused      int `json:"free"`
	Whole       int `json:"whole"`
	Partitioned int `json:"partitioned"`
	Shared      int `json:"shared"`
	Closed      int `json:"closed"`
	Tainted     int `json:"tainted"`
	// Problems counts nodes with one.
	Problems  int `json:"problems"`
	Allocated int `json:"allocatedClaims"`
	Pending   int `json:"pendingClaims"`
	// Free are the devices that the next claims can get; counts of partitions are per profile.
	Free []inspect.Amount `json:"fits"`
	// Fragmentation is that of all nodes.
	Fragmentation float64 `json:"fragmentation"`
}

// nodeOf is the row of a node's view.
func nodeOf(v *inspect.View) *Node {
	n := &Node{Name: v.Node, Problems: v.Problems, GPUs: make([]GPU, 0, len(v.GPUs)), Free: []inspect.Amount{}}
	for i := range v.GPUs {
		n.GPUs = append(n.GPUs, gpuOf(&v.GPUs[i]))
		n.Free = sum(n.Free, v.GPUs[i].Free)
	}
	inspect.InOrder(n.Free)
	return n
}

func gpuOf(v *inspect.GPU) GPU {
	g := GPU{Name: v.Name, Device: v.Device, UUID: v.UUID, Product: v.Product, Units: max(1, v.Slices), Free: v.FreeText(),
		Taints: taintsOf(v),
		Use:    Unused}
	for _, s := range v.Segments() {
		g.Bars = append(g.Bars, barsOf(s, g.Units)...)
		switch {
		case s.Shape != nil && s.Shape.Placement != nil:
			g.Use = Partitioned
		case s.Shape != nil && s.Shape.Total != nil:
			g.Use = Shared
		case s.Shape != nil:
			g.Use = Whole
		case s.State == inspect.SegmentAllocated:
			g.Use = Partitioned
		}
	}
	closed := v.IsClosed()
	if g.Use == Unused && closed {
		g.Use = Closed
	}
	if len(g.Bars) == 0 { // its units are unknown
		b := Bar{Units: g.Units, Part: 1}
		if closed {
			b.State = inspect.SegmentTainted
		}
		b.Means = b.State.String()
		g.Bars = []Bar{b}
	}
	return g
}

// taintsOf are the distinct taints of a GPU's devices that close them, in order. A withdrawn device is not a problem of the GPU.
func taintsOf(v *inspect.GPU) []inspect.Taint {
	var all []inspect.Taint
	for i := range v.Shapes {
		for _, t := range v.Shapes[i].Taints {
			if t.Closes() && !t.Withdrawn() && !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
	}
	return all
}

// sum adds amounts of the same shape.
func sum(to, more []inspect.Amount) []inspect.Amount {
	for _, a := range more {
		at := slices.IndexFunc(to, func(b inspect.Amount) bool { return b.Type == a.Type && b.Profile == a.Profile })
		if at < 0 {
			to = append(to, a)
			continue
		}
		to[at].Count += a.Count
	}
	return to
}

// totalsOf counts.
func totalsOf(nodes []*Node, claims []*Claim) Totals {
	t, left := Totals{Nodes: len(nodes), Free: []inspect.Amount{}}, packing.Free{}
	for _, n := range nodes {
		t.GPUs += len(n.GPUs)
		t.Free = sum(t.Free, n.Free)
		left = left.Plus(n.left)
		if n.HasProblem() {
			t.Problems++
		}
		for i := range n.GPUs {
			t.use(&n.GPUs[i])
		}
	}
	inspect.InOrder(t.Free)
	t.Fragmentation = left.Fragmentation()
	for _, c := range claims {
		if c.Allocated {
			t.Allocated++
		} else {
			t.Pending++
		}
	}
	return t
}

func (t *Totals) use(g *GPU) {
	switch g.Use {
	case Unused:
		t.Unused++
	case Whole:
		t.Whole++
	case Partitioned:
		t.Partitioned++
	case Shared:
		t.Shared++
	case Closed:
		t.Closed++
	}
	if len(g.Taints) > 0 {
		t.Tainted++
	}
}
