// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

const (
	// Probation is how long an error must not recur before its condition ends.
	Probation = time.Minute
	// UnreachableAfter is how long polls may fail before a GPU counts as unreachable. Lost GPUs get none.
	UnreachableAfter = 30 * time.Second
)

// Reasons of conditions, in addition to those of XIDs, such as "xid-79". They are the values of taints.
const (
	ReasonLost           = "gpu-lost"
	ReasonReplaced       = "gpu-replaced"
	ReasonAbsent         = "gpu-absent"
	ReasonHangs          = "gpu-hangs"
	ReasonFabric         = "fabric-not-ready"
	ReasonFabricFailed   = "fabric-failed"
	ReasonRefusing       = "work-not-accepted"
	ReasonUnreachable    = "gpu-unreachable"
	ReasonUnavailable    = "gpu-unavailable"
	ReasonDoubleBitECC   = "double-bit-ecc"
	ReasonRemapFailed    = "row-remap-failed"
	ReasonNeedsReboot    = "needs-reboot"
	ReasonNeedsBusReset  = "needs-bus-reset"
	ReasonDrainAndReset  = "needs-drain-and-reset"
	ReasonNeedsReset     = "needs-reset"
	ReasonDrainP2P       = "needs-p2p-drain"
	ReasonNeedsIMEX      = "needs-imex-recovery"
	ReasonNeedsSomething = "needs-recovery"
)

// Ranks of conditions, the worst highest. From rankSilent on, the GPU does not answer, and the condition ends when it does.
// From rankAction on, the driver requests a recovery action, see actions.
const (
	rankPassing  = 1
	rankLasting  = 2
	rankFabric   = 3
	rankAction   = 10
	rankSilent   = 100
	rankReplaced = 101
	rankLost     = 102
)

// Condition is a reason why a GPU is unhealthy.
type Condition struct {
	// Reason is the value of the taint.
	Reason string
	// Message describes the condition for people.
	Message string
	// Since is when it began.
	Since time.Time
	// Part is the affected part of the board; nil for the whole GPU.
	Part *gpu.Placement
	// SparesPartitions is set if partitions are unaffected.
	SparesPartitions bool
	// SparesRunning is set if running programs may finish: the condition evicts none.
	SparesRunning bool

	rank int
	// class and xid of a reported error; zero for conditions that polls find.
	class Class
	xid   int
	// last is when it was last reported.
	last time.Time
}

// Covers reports whether a condition affects a shape of its GPU.
func (c Condition) Covers(s gpu.Shape) bool {
	if c.SparesPartitions && s.IsPartition() {
		return false
	}
	return c.Part == nil || !s.IsPartition() || s.Placement.Overlaps(*c.Part)
}

// String is a condition's reason and part for the log.
func (c Condition) String() string {
	if c.Part == nil {
		return c.Reason
	}
	return fmt.Sprintf("%s at %d:%d", c.Reason, c.Part.Start, c.Part.Size)
}

// same reports whether two conditions have the same reason and part.
func (c Condition) same(d Condition) bool {
	return c.Reason == d.Reason && (c.Part == nil) == (d.Part == nil) && (c.Part == nil || *c.Part == *d.Part)
}

// Reading is what a poll reads of a GPU.
type Reading struct {
	// Err is the poll's error.
	Err error
	// What follows is undefined with an error.
	gpu.Recovery
	Fabric gpu.FabricState
	// Refuses is set if the GPU is in confidential computing mode and does not accept work.
	Refuses bool
}

// State is the health of one GPU.
type State struct {
	conditions []Condition // the worst first
	// action is the recovery action that the driver last requested; RecoveryUnknown if it never reported one.
	action gpu.RecoveryAction
	// failing is when polls began to fail; zero while they succeed.
	failing time.Time
	// gone is set while the GPU is lost, its driver is unloaded, or it answers only that it needs a reset.
	gone bool
}

// NewState is the state of a GPU before its first poll.
func NewState() *State { return &State{action: gpu.RecoveryUnknown} }

// Conditions are the current ones, the worst first, of equal ones the oldest first.
func (s *State) Conditions() []Condition { return slices.Clone(s.conditions) }

// Healthy reports whether the GPU has no conditions and answered the last poll.
func (s *State) Healthy() bool { return len(s.conditions) == 0 && s.failing.IsZero() }

// PartOnly reports whether an event may affect only a part of a GPU, so that the part matters.
func PartOnly(e gpu.Event) bool {
	return e.Kind == gpu.XIDReported && e.GI != nil && find(e.XID).Class == Passing
}

// Event handles a driver event. part is the affected part of the board for events that are PartOnly; nil if unknown.
// Ignored XIDs have no effect.
func (s *State) Event(e gpu.Event, part *gpu.Placement, ignore []int, now time.Time) {
	switch e.Kind {
	case gpu.XIDReported:
		x := find(e.XID)
		if x.Class == Counted || slices.Contains(ignore, e.XID) {
			return
		}
		c := Condition{Reason: "xid-" + strconv.Itoa(e.XID), Message: fmt.Sprintf("XID %d: %s", e.XID, x.What), class: x.Class, xid: e.XID}
		if PartOnly(e) {
			c.Part = part
		}
		s.report(c, now)
	case gpu.DoubleBitECC:
		const xid = 48 // XID of the same error
		if !slices.Contains(ignore, xid) {
			s.report(Condition{Reason: ReasonDoubleBitECC, Message: "uncorrectable memory error", class: Lasting, xid: xid}, now)
		}
	case gpu.GPUUnavailable:
		s.report(Condition{Reason: ReasonUnavailable, Message: "the driver reports the GPU as unavailable", class: Lasting}, now)
	case gpu.MIGChanged, gpu.RecoveryChanged: // the next poll reads the state
	}
}

// report adds a reported error.
func (s *State) report(c Condition, now time.Time) {
	c.rank = rankPassing
	if c.class == Lasting {
		c.rank = rankLasting
	}
	s.add(c, now)
}

// add adds a condition or updates the time of an existing one.
func (s *State) add(c Condition, now time.Time) {
	c.Since, c.last = now, now
	if i := slices.IndexFunc(s.conditions, c.same); i >= 0 {
		s.conditions[i].last = now
		return
	}
	s.conditions = append(s.conditions, c)
	slices.SortStableFunc(s.conditions, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), a.Since.Compare(b.Since))
	})
}

// end removes conditions.
func (s *State) end(over func(c Condition) bool) {
	s.conditions = slices.DeleteFunc(s.conditions, over)
}

// Poll handles the result of a poll. It ends conditions of ignored XIDs.
func (s *State) Poll(r Reading, ignore []int, now time.Time) {
	s.end(func(c Condition) bool { return c.xid != 0 && slices.Contains(ignore, c.xid) })
	if r.Err != nil {
		s.fail(r.Err, now)
		return
	}
	s.end(func(c Condition) bool { return c.rank >= rankSilent })
	back := s.gone
	s.gone, s.failing = false, time.Time{}
	done := s.act(r.Action, now)
	s.fabric(r.Fabric, now)
	s.confidential(r.Refuses, now)
	s.remap(r.RemapFailed, ignore, now)
	requested := s.action != gpu.RecoveryUnknown && s.action != gpu.RecoveryNone
	s.end(func(c Condition) bool {
		if c.class == 0 || requested {
			return false
		}
		quiet := now.Sub(c.last) >= Probation
		return done || back || quiet && (c.class == Passing || s.action == gpu.RecoveryNone)
	})
}

// fail handles a failed poll.
func (s *State) fail(err error, now time.Time) {
	if s.failing.IsZero() {
		s.failing = now
	}
	switch {
	case errors.Is(err, gpu.ErrHangs):
		// The call has already exceeded the time limit of NVML calls.
		s.add(Condition{Reason: ReasonHangs, Message: "a call to the driver about the GPU has not returned: " + err.Error(), rank: rankSilent},
			now)
	case errors.Is(err, gpu.ErrAbsent):
		s.gone = true
		s.replaced()
		s.add(Condition{Reason: ReasonAbsent, Message: "the GPU was removed: " + err.Error(), rank: rankLost}, now)
	case errors.Is(err, gpu.ErrLost):
		s.gone = true
		s.add(Condition{Reason: ReasonLost, Message: "the GPU no longer answers: " + err.Error(), rank: rankLost}, now)
	case errors.Is(err, gpu.ErrReplaced):
		s.replaced()
		s.add(Condition{Reason: ReasonReplaced, Message: err.Error(), rank: rankReplaced}, now)
	case errors.Is(err, gpu.ErrResetRequired):
		s.gone = true
		s.add(Condition{Reason: ReasonNeedsReset, Message: "the GPU requires a reset: " + err.Error(), rank: rankSilent}, now)
	default:
		s.gone = s.gone || errors.Is(err, gpu.ErrDriverNotLoaded)
		if now.Sub(s.failing) >= UnreachableAfter {
			s.add(Condition{Reason: ReasonUnreachable, Message: "the GPU cannot be polled: " + err.Error(), rank: rankSilent}, now)
		}
	}
}

// actions are the conditions of recovery actions, the worst last. The driver requests a drain and reset after contained errors of memory:
// "existing work that didn't get affected are safe to continue until they finish" (nvidia-smi's manual, GPU Recovery Action;
// open-gpu-kernel-modules 595.45.04, gpu.c, _gpuRefreshRecoveryActionInLock, which ranks it below a reset), and a recovery of the IMEX
// domain for all GPUs of a node while new memory of the fabric cannot be allocated.
var actions = []struct {
	action          gpu.RecoveryAction
	reason, message string
	sparesRunning   bool
}{
	{gpu.RecoveryIMEXDomain, ReasonNeedsIMEX, "the driver requests a recovery of the IMEX domain", true},
	{gpu.RecoveryDrainP2P, ReasonDrainP2P, "the driver requests the end of all programs that use several GPUs", false},
	{gpu.RecoveryDrainAndReset, ReasonDrainAndReset, "memory was taken out of use after an error: running programs may finish, " +
		"then the driver requests a GPU reset", true},
	{gpu.RecoveryReset, ReasonNeedsReset, "the driver requests a GPU reset", false},
	{gpu.RecoveryBusReset, ReasonNeedsBusReset, "the driver requests a reset of the GPU's PCIe bus", false},
	{gpu.RecoveryReboot, ReasonNeedsReboot, "the driver requests a reboot of the node", false},
	{gpu.RecoverySystemReboot, ReasonNeedsReboot, "the driver requests a reboot of the node", false},
}

// act handles the recovery action that the driver requests, and reports whether an earlier request is done. An unknown
// action changes nothing.
func (s *State) act(action gpu.RecoveryAction, now time.Time) (done bool) {
	if action == gpu.RecoveryUnknown {
		return false
	}
	before := s.action
	s.action = action
	requested := Condition{}
	if action != gpu.RecoveryNone {
		requested = Condition{Reason: ReasonNeedsSomething,
			Message: fmt.Sprintf("the driver requests recovery action %d", action), rank: rankAction}
		for i, a := range actions {
			if a.action == action {
				requested.Reason, requested.Message, requested.rank, requested.SparesRunning = a.reason, a.message, rankAction+i, a.sparesRunning
			}
		}
		s.add(requested, now)
	}
	isAction := func(c Condition) bool { return c.rank >= rankAction && c.rank < rankSilent }
	s.end(func(c Condition) bool { return isAction(c) && c.Reason != requested.Reason })
	return action == gpu.RecoveryNone && before != gpu.RecoveryNone && before != gpu.RecoveryUnknown
}

// fabric handles the state of the registration with the NVLink fabric. While it is pending, in progress or not started, CUDA
// returns cudaErrorSystemNotReady on the whole GPU, however long that takes: boards that need no registration report that they
// support none (open-gpu-kernel-modules 595.45.04, nv_gpu_ops.c, _gpuGetFabricStatus, and gpu_fabric_probe.c). Once it has failed,
// NVLink does not work even though all links are up. Partitions have no NVLinks and need no registration.
func (s *State) fabric(state gpu.FabricState, now time.Time) {
	reason := ""
	switch {
	case state == gpu.FabricUnmanaged: // "new CUDA job launch will fail" (Fabric Manager's configuration, ABORT_CUDA_JOBS_ON_FM_EXIT)
		reason = ReasonFabric
		s.add(Condition{
			Reason: reason, Message: "Fabric Manager does not run, without which no new program can use the GPU", SparesPartitions: true,
			SparesRunning: true, rank: rankFabric,
		}, now)
	case state.Pending():
		reason = ReasonFabric
		s.add(Condition{
			Reason: reason, Message: "the GPU is not registered with its NVLink fabric yet, which Fabric Manager does",
			SparesPartitions: true, rank: rankFabric,
		}, now)
	case state == gpu.FabricFailed:
		reason = ReasonFabricFailed
		s.add(Condition{
			Reason: reason, Message: "the registration with the NVLink fabric has failed, and the GPU cannot reach others over NVLink: " +
				"see nvidia-smi -q, Fabric, and the log of Fabric Manager",
			SparesPartitions: true, rank: rankFabric,
		}, now)
	}
	s.end(func(c Condition) bool {
		return (c.Reason == ReasonFabric || c.Reason == ReasonFabricFailed) && c.Reason != reason
	})
}

// confidential handles whether a GPU in confidential computing mode refuses work, as it does until it is set ready.
func (s *State) confidential(refuses bool, now time.Time) {
	if refuses {
		s.add(Condition{
			Reason: ReasonRefusing, Message: "the GPU is in confidential computing mode and does not accept work: after its " +
				"attestation, set it ready with nvidia-smi conf-compute -srs 1", rank: rankFabric,
		}, now)
		return
	}
	s.end(func(c Condition) bool { return c.Reason == ReasonRefusing })
}

// remap handles whether a row of memory could not be remapped. Programs run until the row is hit again, so that none is evicted.
func (s *State) remap(failed *bool, ignore []int, now time.Time) {
	const xid = 64 // XID of the same error
	switch {
	case failed == nil:
	case *failed && !slices.Contains(ignore, xid):
		s.add(Condition{
			Reason: ReasonRemapFailed, Message: "a row of the GPU's memory could not be remapped: replace the GPU", SparesRunning: true,
			rank: rankLasting, xid: xid,
		}, now)
	default:
		s.replaced()
	}
}

// replaced ends what only another board does.
func (s *State) replaced() { s.end(func(c Condition) bool { return c.Reason == ReasonRemapFailed }) }
