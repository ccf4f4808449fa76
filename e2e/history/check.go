// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"slices"
	"time"
)

// Limits are what a history is held to.
type Limits struct {
	// Release is how long what a claim had may take to be free once it was released; zero for DefaultRelease. The time
	// that faults take, until all has recovered, does not count.
	Release time.Duration
	// Program is the plugin, as Hardware.By names it; empty for "cleave-node". What others created, it must not destroy.
	Program string
	// Kept are devices whose partitions may be there without a claim: the layouts of the policies that were active.
	Kept []string
	// Ending is how long a pod that was deleted may be there after its last container, and a claim that was deleted after its last pod;
	// zero for DefaultEnding. Faults count as for Release.
	Ending time.Duration
	// PodsUnseen: nobody can say of what pod a process is, as pods have no control groups.
	PodsUnseen bool
	// Withdrawing are the names of faults that change what the node offers: what is allocated stays published through them.
	Withdrawing []string
	// APILag is how much earlier than recorded a change at the API server may have happened; zero for DefaultAPILag.
	APILag time.Duration
	// Collision is how long a pod may be kept from starting as its devices were allocated twice, and Preemption how long one for which
	// others were evicted may take to run once they have gone; zero for the defaults. Faults count as for Release, but for Collision
	// those of the names Aside do not: nothing that ends a collision needs what they break.
	Collision, Preemption time.Duration
	Aside                 []string
	// Restarts are the names of faults by which schedulers forget what they keep for whom.
	Restarts []string
}

// What Limits are where they are not given.
const (
	DefaultRelease = 30 * time.Second
	DefaultEnding  = 60 * time.Second
	DefaultAPILag  = time.Second
	// DefaultCollision is the timeout of cleave-scheduler, 15 seconds since the pod has its node, with one more as the API server has whole
	// seconds, one for which the scheduler gathers changes, and three for a slow machine.
	DefaultCollision = 20 * time.Second
	// DefaultPreemption is for the deallocation of what victims had, an attempt of the scheduler, Prepare and the start of a container.
	// Each takes a second or two on a slow machine, and an attempt that came too early is made again after up to ten seconds
	// (podMaxBackoffSeconds of kube-scheduler).
	DefaultPreemption = 20 * time.Second
)

// Violation is something that must not have happened.
type Violation struct {
	// Rule that was broken.
	Rule Rule
	// Text says what happened, and why it must not, in two sentences.
	Text string
	// Events that show it, in the order of time.
	Events []Event
}

// String is what a report has.
func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

// Rule is what holds in every history.
type Rule string

// The rules.
const (
	// RuleOwner: each unit has at most one owner at any time, or sharers within its amounts.
	RuleOwner Rule = "owner"
	// RuleDevice: what is prepared exists, and a running container has it until it ends.
	RuleDevice Rule = "device"
	// RuleUnmanaged: nothing that the plugin did not make was destroyed by it.
	RuleUnmanaged Rule = "unmanaged"
	// RuleRelease: whatever was released is free within a bound.
	RuleRelease Rule = "release"
	// RuleClient: an MPS server serves programs of pods whose claims have a share of what it serves, and no others.
	RuleClient Rule = "client"
	// RuleAnswer: Prepare returns what the claim was allocated, and the same each time.
	RuleAnswer Rule = "answer"
	// RulePublished: what a claim has allocated is published.
	RulePublished Rule = "published"
	// RuleEnding: a pod that was deleted is gone within a bound once its containers have ended, and a claim once nothing keeps it.
	RuleEnding Rule = "ending"
	// RuleCollision: where devices were allocated twice, the pod that cannot start goes within a bound, and none that has started.
	RuleCollision Rule = "collision"
	// RulePreemption: pods are evicted for one of a higher priority, which runs within a bound, and gets what they had before its equals.
	RulePreemption Rule = "preemption"
)

// Check returns what in a history must not have happened, in the order of the first event that shows it.
func Check(h History, limits Limits) []Violation {
	limits.Release = cmp.Or(limits.Release, DefaultRelease)
	limits.Ending = cmp.Or(limits.Ending, DefaultEnding)
	limits.Program = cmp.Or(limits.Program, "cleave-node")
	limits.APILag = cmp.Or(limits.APILag, DefaultAPILag)
	limits.Collision = cmp.Or(limits.Collision, DefaultCollision)
	limits.Preemption = cmp.Or(limits.Preemption, DefaultPreemption)
	c := newChecker(h, limits)
	all := slices.Concat(c.checkOwners(), c.checkAnswers(), c.checkDevices(), c.checkUnmanaged(), c.checkReleases(),
		checkClients(c), checkPublished(c), checkEndings(c, h), checkCollisions(c, h), checkPreemptions(c, h))
	for i := range all {
		slices.SortStableFunc(all[i].Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	}
	slices.SortStableFunc(all, func(a, b Violation) int { return cmp.Compare(a.at(), b.at()) })
	return all
}

func (v Violation) at() time.Duration { return v.Events[0].At }

// checker is a history, sorted by what its events are about.
type checker struct {
	limits Limits
	end    time.Duration
	units
	claims []*claim // in the order in which they first appear
	byUID  map[string]*claim
	// partitions in the order in which they were created.
	partitions []*partition
	containers []run
	pods       pods
	modes      []Event // of Hardware that changes a MIG mode or a compute mode
	served     []Event // of Hardware that begins to serve a program of a pod by MPS
	// hardware: changes of it were recorded.
	hardware bool
	disturbances
	gaps map[SourceName][]span
	// withdrawing are the disturbances that excuse that what is allocated is not published; absences are by the names of devices.
	withdrawing disturbances
	absences    map[string][]absence
}

// span is a time with both ends.
type span struct{ from, to time.Duration }

func newChecker(h History, limits Limits) *checker {
	c := &checker{
		limits: limits, end: h.End(), units: units{counters: map[string]Counters{}, devices: map[string]Device{}},
		byUID: map[string]*claim{}, gaps: map[SourceName][]span{},
	}
	for _, e := range h.Events {
		switch f := e.Fact.(type) {
		case Counters:
			c.counters[f.Set] = f
		case Device:
			c.devices[f.Name] = f
		case Gap:
			c.gaps[f.Source] = append(c.gaps[f.Source], span{f.From, e.At})
		}
	}
	c.readClaims(h.Events)
	c.readPartitions(h.Events)
	c.readContainers(h.Events)
	c.pods = readPods(h.Events, c.containers)
	c.disturbances = readDisturbances(h, limits.Release)
	c.absences = readAbsences(h.Events, c.end)
	c.withdrawing = readDisturbances(h, limits.Release, limits.Withdrawing...)
	return c
}

// earliest is when something that a source reported at a time may have happened: where the source could not be watched, at
// any time since then.
func (c *checker) earliest(source SourceName, at time.Duration) time.Duration {
	for _, g := range c.gaps[source] {
		if g.from < at && at <= g.to {
			return g.from
		}
	}
	return at
}
