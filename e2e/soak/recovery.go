// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

const (
	// recoverTimeout bounds a recovery.
	recoverTimeout = 2 * time.Minute
	taintUnhealthy = nodeslices.TaintUnhealthy
)

// recover waits until the node is as without a fault: the programs run, the slices are right, and a pod with claims of a scheduler runs.
// It returns the time that was lost as the pod was evicted, which says nothing of the node.
func (f *faults) recover(outer context.Context, scheduler string) (lost time.Duration, err error) {
	ctx, cancel := context.WithTimeout(outer, recoverTimeout)
	defer cancel()
	if err := f.waitPrograms(ctx); err != nil {
		return 0, err
	}
	if err := f.waitDevices(ctx, f.want); err != nil {
		return 0, err
	}
	return f.probe(ctx, outer, scheduler)
}

// waitPrograms waits until one process of each program runs, and none of those that were killed.
func (f *faults) waitPrograms(ctx context.Context) error {
	for _, p := range []program{pluginProgram, supervisorProgram} {
		err := workload.Until(ctx, "one process of "+p.String(), func(context.Context) (bool, string, error) {
			list, err := f.bed.running(p)
			old := slices.ContainsFunc(f.killed, func(pid int) bool { return len(list) == 1 && list[0].PID == pid })
			return len(list) == 1 && !old, fmt.Sprintf("%d processes", len(list)), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// probe runs a pod with claims. It goes alongside what follows.
func (f *faults) probe(ctx, outer context.Context, scheduler string) (lost time.Duration, err error) {
	f.probes++
	name := fmt.Sprintf("probe-%05d", f.probes)
	f.report.podCreated()
	lost, err = f.bed.runAgain(ctx, f.pods, probe().queued(name, scheduler, steady), recoverTimeout)
	f.ending.Go(func() {
		if err := f.bed.endPod(outer, f.pods, name, false); err != nil && outer.Err() == nil {
			f.report.violation("pod", "%s: %v", name, err)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	f.report.claimsHad(len(probe().Claims))
	return lost, nil
}

// waitDevices waits until the node publishes just these devices, without taints.
func (f *faults) waitDevices(ctx context.Context, want []string) error {
	return workload.Until(ctx, fmt.Sprintf("%d devices without taints", len(want)), func(ctx context.Context) (bool, string, error) {
		got, err := f.bed.devices(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		return slices.Equal(got, want), difference(want, got), nil
	})
}

// devices are those that the node publishes, each with its taints, sorted. That a device is occupied by what a claim left
// until it is cleared away, and is said so, is no fault.
func (b *bed) devices(ctx context.Context) ([]string, error) {
	pool, err := b.pool(ctx)
	return namesOf(pool, nodeslices.TaintOccupied), err
}

// namesOf are the devices of slices, each with its taints but those of some keys, sorted.
func namesOf(pool []resourceapi.ResourceSlice, except ...string) []string {
	var names []string
	for _, s := range pool {
		for _, d := range s.Spec.Devices {
			name := d.Name
			for _, t := range d.Taints {
				if !slices.Contains(except, t.Key) {
					name += " " + t.Key + "=" + t.Value
				}
			}
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// pool are the node's slices, once they are complete.
func (b *bed) pool(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	list, err := b.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + b.cluster.NodeName()})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	for _, s := range list.Items {
		if s.Spec.Pool.Generation != list.Items[0].Spec.Pool.Generation || int64(len(list.Items)) != s.Spec.Pool.ResourceSliceCount {
			return nil, fmt.Errorf("the pool is not complete: %d slices", len(list.Items))
		}
	}
	return list.Items, nil
}

// learn notes what a node publishes while nothing is wrong. All of the tiers are there once the supervisor is.
func (f *faults) learn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoverTimeout)
	defer cancel()
	var before []string
	return workload.Until(ctx, "the devices of a node without faults", func(ctx context.Context) (bool, string, error) {
		pool, err := f.bed.pool(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // nothing may be published yet
		}
		got := namesOf(pool, nodeslices.TaintOccupied)
		f.want, f.gpus = got, map[int]string{}
		mps := 0
		for _, s := range pool {
			for _, d := range s.Spec.Devices {
				switch kind := d.Attributes["type"].StringValue; {
				case kind == nil:
				case *kind == "gpu":
					f.gpus[int(*d.Attributes["index"].IntValue)] = d.Name
				case *kind == "mps":
					mps++
				}
			}
		}
		same := slices.Equal(before, got)
		before = got
		tainted := slices.ContainsFunc(got, func(d string) bool { return strings.Contains(d, " ") })
		state := fmt.Sprintf("%d devices, %d GPUs, %d shared by MPS", len(got), len(f.gpus), mps)
		return same && !tainted && len(f.gpus) == modelGPUs && mps == modelGPUs, state, nil
	})
}

// difference says what is missing and what is there besides, of sorted lists.
func difference(want, got []string) string {
	var words []string
	for _, w := range want {
		if _, found := slices.BinarySearch(got, w); !found {
			words = append(words, "-"+w)
		}
	}
	for _, g := range got {
		if _, found := slices.BinarySearch(want, g); !found {
			words = append(words, "+"+g)
		}
	}
	const most = 12
	if len(words) > most {
		words = append(words[:most], fmt.Sprintf("and %d more", len(words)-most))
	}
	return strings.Join(words, " ")
}
