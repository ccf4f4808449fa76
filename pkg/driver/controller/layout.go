// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Reasons of Events about the layouts of GPUs.
const (
	reasonLayoutNotApplied = "LayoutNotApplied" // GPUs cannot be partitioned as the policy wants; retried
	reasonLayoutApplied    = "LayoutApplied"    // all GPUs are partitioned as the policy wants
)

// mustApplyLayouts reports whether to partition GPUs as the policy wants: whenever something has changed that layouts depend on.
// Layouts wait while devices of the previous policy, of other driver names, or of other drivers may still be allocated: a claim, or a pod
// of another driver, may own the memory that the layout would partition. They also wait for a recovery to end and for the pass after it,
// the first to know which partitions exist: without that knowledge a layout would move.
func (p *Plan) mustApplyLayouts(o *Observed) bool {
	m := &p.Memory
	// State that depends on allocations may change with each claim.
	waiting := m.Conflict != "" || hasWithdrawn(p.Offer) || lacksPartitions(p.Offer, o.Unclaimed) || hasFormer(p.Offer, o)
	due := m.LayoutsDue || p.Recover || o.Changed.Has(Partitions) || p.offerChanged(o) || o.Changed.Has(Allocations) && waiting
	m.LayoutsDue = due && (p.Recover || m.Previous != nil || m.Conflict != "" || o.Working)
	return due && !m.LayoutsDue
}

// lacksPartitions reports whether a GPU lacks partitions of its layout.
func lacksPartitions(node *policy.Node, unclaimed map[gpu.PCIAddress][]gpu.Place) bool {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		offer := node.Offer(g)
		if offer.PartitionMode() != policy.Layout {
			continue
		}
		if slices.ContainsFunc(offer.Partitions.Places, func(at gpu.Place) bool { return !slices.Contains(unclaimed[g.PCI], at) }) {
			return true
		}
	}
	return false
}

// hasFormer reports whether a GPU without a layout has a partition of an earlier one that no claim owns: a claim may have had it.
func hasFormer(node *policy.Node, o *Observed) bool {
	return slices.ContainsFunc(node.GPUs, func(g gpu.GPU) bool {
		mode := node.Offer(&g).PartitionMode()
		return mode != policy.Layout && mode != policy.Existing &&
			slices.ContainsFunc(o.Layouts[g.PCI], func(at gpu.Place) bool { return slices.Contains(o.Unclaimed[g.PCI], at) })
	})
}

// considerLayoutProblems reports obstacles to layouts when they have changed.
func (p *Plan) considerLayoutProblems(o *Observed) {
	now := describeProblems(o.LayoutProblems, lastingCauses)
	if now == p.Memory.Layouts {
		return
	}
	p.Memory.Layouts = now
	if now == "" {
		const message = "All GPUs are partitioned as the policy wants"
		p.report(Report{Log: message, Reason: reasonLayoutApplied, Message: message})
		return
	}
	for _, problem := range o.LayoutProblems {
		p.report(Report{Log: "GPU is not partitioned as the policy wants", Err: problem.Err,
			Values: []any{"gpu", problem.GPU, "retryEvery", finishEvery}})
	}
	p.report(Report{Warning: true, Reason: reasonLayoutNotApplied, Message: describeProblems(o.LayoutProblems, error.Error)})
}

// lastingCauses is the text of joined errors without the processes that use a GPU, which may be others at each attempt.
func lastingCauses(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []string
		for _, one := range joined.Unwrap() {
			if cause := lastingCauses(one); !slices.Contains(all, cause) {
				all = append(all, cause)
			}
		}
		return strings.Join(all, "; ")
	}
	if errors.Is(err, gpu.ErrInUse) {
		return gpu.ErrInUse.Error()
	}
	return err.Error()
}

// describeProblems joins all problems in one line; empty without any.
func describeProblems(problems []LayoutProblem, words func(error) string) string {
	var all []string
	for _, p := range problems {
		all = append(all, fmt.Sprintf("%s: %s", p.GPU, words(p.Err)))
	}
	return strings.ReplaceAll(strings.Join(all, "; "), "\n", ", ")
}
