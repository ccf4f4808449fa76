// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Kind of a fault.
type Kind string

// The kinds of faults.
const (
	PluginKilled        Kind = "plugin killed"
	PluginStopped       Kind = "plugin stopped"
	SupervisorKilled    Kind = "MPS supervisor killed"
	SupervisorStopped   Kind = "MPS supervisor stopped"
	MPSDaemonKilled     Kind = "MPS daemon killed"
	KubeletKilled       Kind = "kubelet killed"
	KubeletStopped      Kind = "kubelet stopped"
	ContainerdKilled    Kind = "containerd killed"
	ContainerdStopped   Kind = "containerd stopped"
	SchedulerKilled     Kind = "scheduler killed"
	SchedulerStopped    Kind = "scheduler stopped"
	OurSchedulerKilled  Kind = "cleave-scheduler killed"
	OurSchedulerStopped Kind = "cleave-scheduler stopped"
	APIServerKilled     Kind = "API server killed"
	APIServerStopped    Kind = "API server stopped"
	APIServerSlow       Kind = "API server slow"
	APIServerPartition  Kind = "API server partitioned"
	DriverReloaded      Kind = "driver reloaded"
	NodeRebooted        Kind = "node rebooted"
	GPULost             Kind = "GPU lost"
	GPUNeedsReset       Kind = "GPU reports XID"
	PartitionByHand     Kind = "partition by hand"
	DiskFull            Kind = "disk full"
	ClockJumped         Kind = "clock jumped"
	PolicySwitched      Kind = "policy switched"
	PolicyAtPrepare     Kind = "policy switched before Prepare"
	RecordsCorrupted    Kind = "claim records corrupted"
	NodeRecreated       Kind = "node object recreated"
	ClaimsHeld          Kind = "claims held by finalizers"
	GatesOff            Kind = "feature gates off"
	ContainerHangs      Kind = "container does not end"
	ReleaseUpgraded     Kind = "release upgraded"
	ReleaseRolledBack   Kind = "release rolled back"
)

// round is what a round of faults consists of, in an order that the seed determines. The release is upgraded before it is
// rolled back.
var round = []Kind{
	PluginKilled, PluginKilled, PluginKilled, PluginKilled, PluginStopped, PluginStopped, SupervisorKilled, SupervisorKilled,
	SupervisorStopped, MPSDaemonKilled, KubeletKilled, KubeletStopped, ContainerdKilled, ContainerdStopped, SchedulerKilled,
	SchedulerStopped, OurSchedulerKilled, OurSchedulerStopped, APIServerKilled, APIServerStopped, APIServerSlow,
	APIServerPartition, DriverReloaded, NodeRebooted, GPULost,
	GPUNeedsReset, PartitionByHand, PartitionByHand, DiskFull, ClockJumped, PolicySwitched, PolicyAtPrepare, RecordsCorrupted, NodeRecreated,
	ClaimsHeld, GatesOff, ContainerHangs, ReleaseUpgraded, ReleaseRolledBack,
}

// Kinds are all kinds of faults, in the order in which a report lists them.
func Kinds() []Kind { return slices.Compact(slices.Clone(round)) }

// Own reports whether the fault is one of the plugin's own programs, of which recovery is Cleave's alone.
func (k Kind) Own() bool {
	return slices.Contains([]Kind{PluginKilled, PluginStopped, SupervisorKilled, SupervisorStopped, MPSDaemonKilled}, k)
}

// crashes are kinds that may be injected in the midst of another fault, the more often the more often they are named.
var crashes = []Kind{PluginKilled, PluginKilled, SupervisorKilled, KubeletKilled, ContainerdKilled, SchedulerKilled, APIServerKilled}

// crashesDuring are those of crashes that can be in the midst of a fault of a kind. A component that is stopped is not killed, nor one
// that cannot become ready meanwhile: the kubelet needs the API server and containerd for it, the scheduler the API server.
func (k Kind) crashesDuring() []Kind {
	var never []Kind
	switch k {
	case PartitionByHand:
		return []Kind{PluginKilled} // the next one is to find the partition
	case PolicyAtPrepare:
		return nil // the kubelet is stopped until the one pod is bound
	case GatesOff:
		never = []Kind{APIServerKilled, SchedulerKilled} // they have other gates meanwhile
	case ContainerHangs:
		never = []Kind{ContainerdKilled} // it gives up runtimes that do not answer at its start
	case APIServerStopped, APIServerKilled:
		never = []Kind{APIServerKilled, SchedulerKilled, KubeletKilled}
	case ContainerdStopped, ContainerdKilled:
		never = []Kind{ContainerdKilled, KubeletKilled}
	case KubeletStopped, KubeletKilled:
		never = []Kind{KubeletKilled}
	case SchedulerStopped, SchedulerKilled:
		never = []Kind{SchedulerKilled}
	case PluginStopped, PluginKilled:
		never = []Kind{PluginKilled}
	case SupervisorStopped, SupervisorKilled:
		never = []Kind{SupervisorKilled}
	}
	return slices.DeleteFunc(slices.Clone(crashes), func(c Kind) bool { return slices.Contains(never, c) })
}

// faultsAlone: of so many faults, one has no crash in its midst.
const faultsAlone = 4

// probedBy is the scheduler whose pod shows that all works again after the fault.
func (k Kind) probedBy() string {
	if k == OurSchedulerKilled || k == OurSchedulerStopped {
		return cleaveScheduler
	}
	return kubeScheduler
}

// victims are the pods whose containers may end by a fault.
type victims int

const (
	noPods victims = iota
	// mpsPods have shares by MPS: their programs end with the server.
	mpsPods
	allPods
)

// ends are the pods whose containers may end by faults of a kind. MPS daemons end with their supervisor where the node has
// cgroup v1: the container runtime finds the processes of a container by it. A daemon without a server does not keep the driver
// from being reloaded, and is restarted for the new one: a program that starts meanwhile fails (docs/upgrade.md).
func (k Kind) ends() victims {
	switch k {
	case SupervisorKilled, MPSDaemonKilled, DriverReloaded:
		return mpsPods
	case ContainerdKilled, ContainerdStopped, NodeRebooted:
		return allPods
	default:
		return noPods
	}
}

const (
	// outlasting is how much longer some containers do not end, of so many one: a minute after a pod is gone, the kubelet has its claims
	// unprepared whether or not its containers have ended (reconcileLoop of k8s.io/kubernetes/pkg/kubelet/cm/dra).
	outlasting       = 65 * time.Second
	faultsOutlasting = 4
)

// lasts is for how long a fault of a kind is there, at least and at most; zero for those that last as long as it takes.
var lasts = map[Kind][2]time.Duration{
	PluginStopped: {1 * time.Second, 6 * time.Second}, SupervisorStopped: {1 * time.Second, 6 * time.Second},
	KubeletStopped: {1 * time.Second, 5 * time.Second}, ContainerdStopped: {1 * time.Second, 5 * time.Second},
	SchedulerStopped: {1 * time.Second, 4 * time.Second}, OurSchedulerStopped: {1 * time.Second, 20 * time.Second},
	APIServerStopped: {2 * time.Second, 5 * time.Second},
	APIServerSlow:    {6 * time.Second, 12 * time.Second}, APIServerPartition: {3 * time.Second, 10 * time.Second},
	GPULost: {0, 3 * time.Second}, PartitionByHand: {2 * time.Second, 8 * time.Second},
	DiskFull: {2 * time.Second, 6 * time.Second}, ClockJumped: {2 * time.Second, 6 * time.Second},
	PolicyAtPrepare: {2 * time.Second, 4 * time.Second}, ClaimsHeld: {2 * time.Second, 8 * time.Second},
	GatesOff:       {2 * time.Second, 4 * time.Second},
	ContainerHangs: {3 * time.Second, 10 * time.Second},
}

// Fault is one fault of a plan.
type Fault struct {
	Index int
	Kind  Kind
	// After is how long the node is left alone before.
	After time.Duration
	// For is how long the fault lasts.
	For time.Duration
	// Meanwhile is the kind of a second fault, a crash in the midst of this one, or at once after one that does not last; empty for none.
	Meanwhile Kind
	// GPU is the index of a GPU, for faults of one.
	GPU int
	// Jump is how far the clock jumps, for faults of it.
	Jump time.Duration
}

// Plan is what a seed determines.
type Plan struct {
	seed uint64
	gpus int
}

// NewPlan makes the plan of a seed for a node with so many GPUs.
func NewPlan(seed uint64, gpus int) Plan { return Plan{seed, gpus} }

// The streams of random numbers of a plan: what is drawn for one does not change another.
const (
	streamRounds = iota + 1
	streamFaults
	streamPods
	streamClaims
	streamQueues
	streamRivals
	streamUrgent
	streamMeanwhile
)

func (p Plan) random(stream, index int) *rand.Rand {
	return rand.New(rand.NewPCG(p.seed, uint64(stream)<<32|uint64(index)))
}

// Fault is the fault of an index, from 0.
func (p Plan) Fault(index int) Fault {
	r := p.random(streamFaults, index)
	f := Fault{Index: index, Kind: p.kinds(index / len(round))[index%len(round)]}
	f.After = between(r, 250*time.Millisecond, 2*time.Second)
	if limits, ok := lasts[f.Kind]; ok {
		f.For = between(r, limits[0], limits[1])
	}
	f.Meanwhile = p.meanwhile(f)
	if f.Kind == GPULost || f.Kind == GPUNeedsReset {
		f.GPU = r.IntN(p.gpus)
	}
	if f.Kind == ContainerHangs && r.IntN(faultsOutlasting) == 0 {
		f.For += outlasting
	}
	if f.Kind == ClockJumped {
		f.Jump = between(r, time.Minute, 2*time.Hour)
		if r.IntN(2) == 0 {
			f.Jump = -f.Jump
		}
	}
	return f
}

// meanwhile is the kind of a crash in the midst of a fault.
func (p Plan) meanwhile(f Fault) Kind {
	r := p.random(streamMeanwhile, f.Index)
	kinds := f.Kind.crashesDuring()
	if len(kinds) == 0 || r.IntN(faultsAlone) == 0 && f.Kind != PartitionByHand {
		return ""
	}
	return kinds[r.IntN(len(kinds))]
}

// kinds are those of a round, in order.
func (p Plan) kinds(number int) []Kind {
	kinds := slices.Clone(round)
	p.random(streamRounds, number).Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	up, back := slices.Index(kinds, ReleaseUpgraded), slices.Index(kinds, ReleaseRolledBack)
	if back < up {
		kinds[up], kinds[back] = ReleaseRolledBack, ReleaseUpgraded
	}
	return kinds
}

// between draws a time, in milliseconds.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N((most-least).Milliseconds()+1))*time.Millisecond
}

// Pod is one pod of a plan.
type Pod struct {
	Index int
	Shape Shape
	// Hold is how long it keeps its devices.
	Hold time.Duration
	// Force removes it from the API server at once, while its containers still run.
	Force bool
}

// Pod is the pod of an index, from 0.
func (p Plan) Pod(index int) Pod {
	r := p.random(streamPods, index)
	shapes := Shapes()
	return Pod{
		Index: index, Shape: shapes[r.IntN(len(shapes))], Hold: between(r, 200*time.Millisecond, 4*time.Second), Force: r.IntN(8) == 0,
	}
}
