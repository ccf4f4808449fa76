// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// mostBuilds is how many there can be beside this one: minor numbers of simulated GPUs end at 31.
const mostBuilds = 2

// compareTime is how long builds are asked in turn.
const compareTime = 3 * time.Minute

// comparison measures other builds of the plugin beside this one. There is a node for each, and all are asked in turn, so that each sees
// the same machine: differences of a few percent show, which two runs hide.
type comparison struct {
	*bench
	nodes []*comparedNode
}

// comparedNode is the node of a build. Half of its GPUs have partitions, of which one each is measured, and the others are allocated whole.
type comparedNode struct {
	*usageNode
	single, whole    []*drapb.Claim
	partitions, gpus operations
}

// builds are this one and those of -compare, by directory.
func (b *comparison) builds() ([][2]string, error) {
	all := [][2]string{{"this build", filepath.Join(b.source, "bin")}}
	pairs := strings.Split(b.compare, ",")
	if len(pairs) > mostBuilds {
		return nil, fmt.Errorf("read -compare: there are %d builds, and simulated device nodes for %d", len(pairs), mostBuilds)
	}
	for _, pair := range pairs {
		name, dir, ok := strings.Cut(pair, "=")
		if !ok || name == "" || dir == "" {
			return nil, fmt.Errorf("read -compare: %q is not NAME=DIRECTORY, as in before=../before/bin", pair)
		}
		all = append(all, [2]string{name, dir})
	}
	return all, nil
}

func (b *comparison) measure(ctx context.Context, r *report) (err error) {
	defer func() { err = errors.Join(err, b.clear()) }()
	builds, err := b.builds()
	if err != nil {
		return err
	}
	for i, build := range builds {
		n := &comparedNode{usageNode: &usageNode{podClaims: podClaims{bench: b.bench, pool: fmt.Sprintf("bench-build-%d", i)},
			every: usages[0].every, name: build[0], bin: build[1]}}
		b.nodes = append(b.nodes, n)
		if err := n.start(ctx, 8*(i+1)); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
		if err := n.fill(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.name, err)
		}
	}
	if err := b.ask(ctx); err != nil {
		return err
	}
	for _, n := range b.nodes {
		for _, kind := range []struct {
			name      string
			of, first operations
		}{{"partition", n.partitions, b.nodes[0].partitions}, {"whole GPU", n.gpus, b.nodes[0].gpus}} {
			r.add(compared(n.name+", "+kind.name+": prepare p50", kind.of.prepare, kind.first.prepare))
			r.add(compared(n.name+", "+kind.name+": unprepare p50", kind.of.unprepare, kind.first.unprepare))
		}
	}
	return nil
}

// compared is the median of a build, and how it compares with this one's.
func compared(name string, of, with samples) result {
	value, first := millis(of.percentile(50)), millis(with.percentile(50))
	return result{Name: name, Value: value, Unit: "ms", Rule: fmt.Sprintf("%.3f x this build, of %d", value/first, len(of))}
}

// ask asks the plugins in turn, each round one that another began with. The first tenth of the time warms up and does not count.
func (b *comparison) ask(ctx context.Context) error {
	began, warm := time.Now(), true
	for round := 0; time.Since(began) < compareTime; round++ {
		if warm && time.Since(began) > compareTime/10 {
			warm = false
			for _, n := range b.nodes {
				n.partitions, n.gpus = operations{}, operations{}
			}
		}
		for i := range b.nodes {
			n := b.nodes[(round+i)%len(b.nodes)]
			err := errors.Join(n.once(ctx, n.single[round%len(n.single)], &n.partitions), n.once(ctx, n.whole[round%len(n.whole)], &n.gpus))
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
		}
	}
	return nil
}

// once prepares a claim and unprepares it.
func (n *comparedNode) once(ctx context.Context, claim *drapb.Claim, to *operations) error {
	if err := timed(&to.prepare, func() error { return prepare(ctx, n.plugin, claim) }); err != nil {
		return err
	}
	return timed(&to.unprepare, func() error { return unprepare(ctx, n.plugin, claim) })
}

// fill creates the claims, and prepares those that are not measured.
func (n *comparedNode) fill(ctx context.Context) error {
	for g, names := range n.usageNode.partitions {
		if g >= len(n.usageNode.partitions)/2 {
			whole, _, _ := strings.Cut(names[0], "-mig-")
			if err := n.make(ctx, fmt.Sprintf("%s-%d", n.pool, g), whole); err != nil {
				return err
			}
			n.whole = append(n.whole, n.claims[len(n.claims)-1])
			continue
		}
		for i, name := range names {
			if err := n.make(ctx, fmt.Sprintf("%s-%d-%d", n.pool, g, i), name); err != nil {
				return err
			}
			claim := n.claims[len(n.claims)-1]
			if i == 0 {
				n.single = append(n.single, claim)
				continue
			}
			if err := prepare(ctx, n.plugin, claim); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear ends the nodes.
func (b *comparison) clear() error {
	nodes := &usageBench{bench: b.bench}
	for _, n := range b.nodes {
		nodes.nodes = append(nodes.nodes, n.usageNode)
	}
	return nodes.clear()
}
