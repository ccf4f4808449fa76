// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/history/tap"
	"github.com/cleave-dra/cleave/e2e/history/watch"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// startTap puts a tap between the kubelet and the plugin, which registers in a directory of its own.
func (b *bed) startTap(ctx context.Context) error {
	registry, err := b.cluster.GuestDir("registry")
	if err != nil {
		return err
	}
	sockets, err := b.cluster.GuestDir("tap")
	if err != nil {
		return err
	}
	b.registry = registry
	b.tap, err = tap.Start(ctx, tap.Options{PluginRegistry: registry, KubeletRegistry: b.cluster.RegistryDir(), Dir: sockets})
	return err
}

// record begins to record a history in a file.
func (b *bed) record(ctx context.Context, file string) (*history.Recorder, error) {
	return history.Record(ctx, history.Sources{File: file, Node: b.cluster.NodeName(), Driver: workload.Driver, Of: []history.Source{
		b.tap,
		watch.API{Kube: b.kube, Driver: workload.Driver, Node: b.cluster.NodeName()},
		watch.Pods{Kube: b.kube, Node: b.cluster.NodeName()},
		watch.Scheduling{Kube: b.kube, Namespace: namespace},
		watch.Runtime{Socket: b.cluster.ContainerRuntime()},
		watch.Simulator{Root: b.Node.Root(), Program: "cleave-node"},
	}})
}

// releaseLimit is how long what was released may stay. Between faults there are a second or two, and the time of a fault does
// not count: with a longer limit, what leaks for minutes would be in time.
const releaseLimit = 5 * time.Second

// check ends a recording and adds to the violations what must not have happened. Where pods have no control groups, nobody knows what
// programs are theirs.
func (t *tally) check(r *history.Recorder, pods *podList, podGroups bool) error {
	h, err := r.Stop()
	if err != nil {
		return err
	}
	limits := history.Limits{Release: releaseLimit, PodsUnseen: !podGroups, Restarts: []string{string(OurSchedulerKilled)}}
	for _, k := range []Kind{
		SchedulerKilled, SchedulerStopped, SupervisorKilled, SupervisorStopped, MPSDaemonKilled, ClockJumped, ClaimsHeld,
	} {
		limits.Aside = append(limits.Aside, string(k))
	}
	for _, k := range []Kind{PolicySwitched, PolicyAtPrepare, DiskFull, GatesOff} {
		limits.Withdrawing = append(limits.Withdrawing, string(k))
	}
	for _, v := range history.Check(h, limits) {
		t.violation("history", "%s", v)
	}
	if lacks := history.Lacks(h, limits); len(lacks) > 0 {
		return fmt.Errorf("check the history: it has nothing of %s", strings.Join(lacks, ", "))
	}
	t.evictions(history.Evictions(h), pods.lost)
	t.log("the history has %d events", len(h.Events))
	return nil
}

// note notes in the history what became of a fault.
func (f *faults) note(fault Fault, state history.FaultState) {
	target := ""
	if fault.Kind == GPULost || fault.Kind == GPUNeedsReset {
		target = f.gpus[fault.GPU]
	}
	f.recorder.Add(history.Fault{ID: fault.Index, Name: string(fault.Kind), State: state, Target: target})
}
