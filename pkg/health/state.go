// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

const (
	// Probation is for how long an error must not have come again to be over.
	Probation = time.Minute
	// Patience is for how long a GPU may fail to answer before it counts as unreachable. It is not for GPUs that are lost.
	Patience = 30 * time.Second
	// FabricPatience is for how long a registration with the NVLink fabric that does not start keeps a GPU back. After it, no
	// Fabric Manager is expected: virtual machines with one GPU of such a board run without.
	FabricPatience = 5 * time.Minute
)

// Reasons of conditions, beside those of XIDs, which are "xid-79" and the like. They are the values of taints.
const (
	ReasonLost           = "gpu-lost"
	ReasonReplaced       = "gpu-replaced"
	ReasonAbsent         = "gpu-absent"
	ReasonHangs          = "gpu-hangs"
	ReasonFabric         = "fabric-not-ready"
	ReasonUnreachable    = "gpu-unreachable"
	ReasonUnavailable    = "gpu-unavailable"
	ReasonDoubleBitECC   = "double-bit-ecc"
	ReasonNeedsReboot    = "needs-reboot"
	ReasonNeedsBusReset  = "needs-bus-reset"
	ReasonDrainAndReset  = "needs-drain-and-reset"
	ReasonNeedsReset     = "needs-reset"
	ReasonDrainP2P       = "needs-p2p-drain"
	ReasonNeedsIMEX      = "needs-imex-recovery"
	ReasonNeedsSomething = "needs-recovery"
)

// Ranks of conditions: the higher the worse. From rankSilent on they are about a GPU that does not answer, and end when
// it does; from rankAction on about what the driver wants, see actions.
const (
	rankPassing  = 1
	rankLasting  = 2
	rankFabric   = 3
	rankAction   = 10
	rankSilent   = 100
	rankReplaced = 101
	rankLost     = 102
)

// Condition is one thing that is wrong with a GPU.
type Condition struct {
	// Reason in one word, for a taint.
	Reason string
	// Message says what happened, for people.
	Message string
	// Since when it holds.
	Since time.Time
	// Part of the board that it is about; nil for the whole GPU.
	Part *gpu.Placement
	// SparesPartitions tells that partitions are not concerned.
	SparesPartitions bool

	rank int
	// class of an error that was reported, and xid for its number; zero for what polls tell.
	class Class
	xid   int
	// last is when it was reported last.
	last time.Time
}

// Covers tells whether a condition is about something that a shape of its GPU has.
func (c Condition) Covers(s gpu.Shape) bool {
	if c.SparesPartitions && s.IsPartition() {
		return false
	}
	return c.Part == nil || !s.IsPartition() || s.Placement.Overlaps(*c.Part)
}

// String names a condition for the log.
func (c Condition) String() string {
	if c.Part == nil {
		return c.Reason
	}
	return fmt.Sprintf("%s at %d:%d", c.Reason, c.Part.Start, c.Part.Size)
}

// same tells whether two conditions are one, met twice.
func (c Condition) same(d Condition) bool {
	return c.Reason == d.Reason && (c.Part == nil) == (d.Part == nil) && (c.Part == nil || *c.Part == *d.Part)
}

// Reading is what a GPU says when it is asked.
type Reading struct {
	// Err of asking for its UUID and its recovery action.
	Err error
	// Action and Fabric are meaningless with an error.
	Action gpu.RecoveryAction
	Fabric gpu.FabricState
}

// State is the health of one GPU.
type State struct {
	conditions []Condition // the worst first
	// action is what the driver wanted last; RecoveryUnknown as long as it never told.
	action gpu.RecoveryAction
	// failing is since when the GPU does not answer; zero while it does.
	failing time.Time
	// gone tells that the GPU was lost, its driver away or its only answer a wish for a reset, and that it has not
	// answered since.
	gone bool
	// unregistered is since when the GPU's registration with the fabric is pending; zero while it is not.
	unregistered time.Time
}

// NewState is the state of a GPU of which nothing is known yet.
func NewState() *State { return &State{action: gpu.RecoveryUnknown} }

// Conditions are those that hold, the worst first; of equal ones the one that holds for longest.
func (s *State) Conditions() []Condition { return slices.Clone(s.conditions) }

// Well tells whether the GPU has no trouble, and answered when it was asked last.
func (s *State) Well() bool { return len(s.conditions) == 0 && s.failing.IsZero() }

// PartOnly tells whether an event may be about a part of a GPU alone, so that it matters which.
func PartOnly(e gpu.Event) bool {
	return e.Kind == gpu.XIDReported && e.GI != nil && find(e.XID).Class == Passing
}

// Event takes in what a driver reports. Part is where on the board it happened, for events that are PartOnly; nil
// where that is not known. XIDs to ignore are Counted.
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
		const xid = 48 // the same by another way
		if !slices.Contains(ignore, xid) {
			s.report(Condition{Reason: ReasonDoubleBitECC, Message: "memory had an error that could not be corrected", class: Lasting, xid: xid}, now)
		}
	case gpu.GPUUnavailable:
		s.report(Condition{Reason: ReasonUnavailable, Message: "the driver says that the GPU is unavailable", class: Lasting}, now)
	case gpu.MIGChanged, gpu.RecoveryChanged: // nothing that a poll does not tell better
	}
}

// report adds an error that was reported.
func (s *State) report(c Condition, now time.Time) {
	c.rank = rankPassing
	if c.class == Lasting {
		c.rank = rankLasting
	}
	s.add(c, now)
}

// add makes a condition hold, or notes that it still does.
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

// end makes conditions end.
func (s *State) end(over func(c Condition) bool) {
	s.conditions = slices.DeleteFunc(s.conditions, over)
}

// Poll takes in what the GPU answers. XIDs to ignore hold no longer.
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
	wanted := s.action != gpu.RecoveryUnknown && s.action != gpu.RecoveryNone
	s.end(func(c Condition) bool {
		if c.class == 0 || wanted {
			return false
		}
		quiet := now.Sub(c.last) >= Probation
		return done || back || quiet && (c.class == Passing || s.action == gpu.RecoveryNone)
	})
}

// fail takes in that a GPU does not answer.
func (s *State) fail(err error, now time.Time) {
	if s.failing.IsZero() {
		s.failing = now
	}
	switch {
	case errors.Is(err, gpu.ErrHangs):
		// The bound has passed already: see nvml.Patience.
		s.add(Condition{Reason: ReasonHangs, Message: "a call to the driver about the GPU has not returned: " + err.Error(), rank: rankSilent}, now)
	case errors.Is(err, gpu.ErrAbsent):
		s.gone = true
		s.add(Condition{Reason: ReasonAbsent, Message: "the GPU was taken out: " + err.Error(), rank: rankLost}, now)
	case errors.Is(err, gpu.ErrLost):
		s.gone = true
		s.add(Condition{Reason: ReasonLost, Message: "the GPU does not answer any more: " + err.Error(), rank: rankLost}, now)
	case errors.Is(err, gpu.ErrReplaced):
		s.add(Condition{Reason: ReasonReplaced, Message: err.Error(), rank: rankReplaced}, now)
	case errors.Is(err, gpu.ErrResetRequired):
		s.gone = true
		s.add(Condition{Reason: ReasonNeedsReset, Message: "the GPU answers only that it needs a reset: " + err.Error(), rank: rankSilent}, now)
	default:
		s.gone = s.gone || errors.Is(err, gpu.ErrDriverNotLoaded)
		if now.Sub(s.failing) >= Patience {
			s.add(Condition{Reason: ReasonUnreachable, Message: "the GPU cannot be asked: " + err.Error(), rank: rankSilent}, now)
		}
	}
}

// actions are the conditions that recovery actions are, from the least to the worst.
var actions = []struct {
	action          gpu.RecoveryAction
	reason, message string
}{
	{gpu.RecoveryIMEXDomain, ReasonNeedsIMEX, "the driver wants the IMEX domain recovered"},
	{gpu.RecoveryDrainP2P, ReasonDrainP2P, "the driver wants all programs ended that use GPUs together"},
	{gpu.RecoveryReset, ReasonNeedsReset, "the driver wants the GPU reset"},
	{gpu.RecoveryDrainAndReset, ReasonDrainAndReset, "the driver wants all programs ended that use GPUs together, and then the GPU reset"},
	{gpu.RecoveryBusReset, ReasonNeedsBusReset, "the driver wants the GPU's PCIe bus reset"},
	{gpu.RecoveryReboot, ReasonNeedsReboot, "the driver wants the node rebooted"},
	{gpu.RecoverySystemReboot, ReasonNeedsReboot, "the driver wants the node rebooted"},
}

// act takes in which recovery action the driver wants, and tells whether the one that it wanted is done. A driver that
// does not tell changes nothing.
func (s *State) act(action gpu.RecoveryAction, now time.Time) (done bool) {
	if action == gpu.RecoveryUnknown {
		return false
	}
	before := s.action
	s.action = action
	wanted := Condition{}
	if action != gpu.RecoveryNone {
		wanted = Condition{Reason: ReasonNeedsSomething, Message: fmt.Sprintf("the driver wants recovery action %d", action), rank: rankAction}
		for i, a := range actions {
			if a.action == action {
				wanted.Reason, wanted.Message, wanted.rank = a.reason, a.message, rankAction+i
			}
		}
		s.add(wanted, now)
	}
	s.end(func(c Condition) bool { return c.isAction() && c.Reason != wanted.Reason })
	return action == gpu.RecoveryNone && before != gpu.RecoveryNone && before != gpu.RecoveryUnknown
}

// fabric takes in how far the registration with the NVLink fabric is. While it is pending CUDA answers
// cudaErrorSystemNotReady on the whole GPU; partitions have no NVLinks and need none.
func (s *State) fabric(state gpu.FabricState, now time.Time) {
	switch {
	case !state.Pending():
		s.unregistered = time.Time{}
	case s.unregistered.IsZero():
		s.unregistered = now
	}
	if state.Pending() && (state == gpu.FabricInProgress || now.Sub(s.unregistered) < FabricPatience) {
		s.add(Condition{
			Reason: ReasonFabric, Message: "the GPU is not registered with its NVLink fabric yet; Fabric Manager does that",
			SparesPartitions: true, rank: rankFabric,
		}, now)
		return
	}
	s.end(func(c Condition) bool { return c.Reason == ReasonFabric })
}

// isAction tells whether a condition is that the driver wants something.
func (c Condition) isAction() bool { return c.rank >= rankAction && c.rank < rankSilent }
