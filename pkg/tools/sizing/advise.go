// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Advise compares what claims have with what was seen of them. The cluster cannot be asked again.
func (c *Cluster) Advise(f *Figures, p Params) (*Advice, error) {
	nodes, held := c.load()
	a := &Advice{Driver: c.driver, Source: f.source(), Since: p.Since.Hours(), Step: p.Step.Hours(), Margin: p.Margin, Workloads: []Workload{}}
	for _, n := range nodes {
		a.GPUs += len(n.state.Model().GPUs)
	}
	a.WholeNow = wholeOf(nodes)
	kinds := kindsOf(nodes)
	for _, group := range grouped(held) {
		w := judge(group, f, p, kinds)
		for _, h := range group {
			h.follows = w.Suffices
		}
		a.Workloads = append(a.Workloads, w)
	}
	if err := follow(nodes, held); err != nil {
		return nil, err
	}
	a.WholeThen = wholeOf(nodes)
	a.Problems = slices.Concat(c.problems, f.Warnings)
	return a, nil
}

func wholeOf(nodes []*node) (n int) {
	for _, node := range nodes {
		n += node.state.Untouched()
	}
	return n
}

// kindsOf are the devices of all nodes that a claim has alone, the smallest first.
func kindsOf(nodes []*node) (kinds []Device) {
	known := map[Device]bool{}
	for _, n := range nodes {
		for _, k := range n.kinds {
			if !k.shared && !known[k] {
				known[k] = true
				kinds = append(kinds, k)
			}
		}
	}
	slices.SortFunc(kinds, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Multiprocessors, b.Multiprocessors),
			strings.Compare(a.Shape, b.Shape))
	})
	return kinds
}

// grouped are the holdings by namespace, workload and what they asked for.
func grouped(held []*holding) (groups [][]*holding) {
	compare := func(a, b *holding) int {
		return cmp.Or(strings.Compare(a.claim.Namespace, b.claim.Namespace), strings.Compare(a.workload, b.workload),
			strings.Compare(a.asked.Product, b.asked.Product), strings.Compare(a.asked.Shape, b.asked.Shape))
	}
	slices.SortStableFunc(held, compare)
	for _, h := range held {
		if last := len(groups) - 1; last >= 0 && compare(groups[last][0], h) == 0 {
			groups[last] = append(groups[last], h)
		} else {
			groups = append(groups, []*holding{h})
		}
	}
	return groups
}

// judge finds the smallest device that would do for a workload.
func judge(group []*holding, f *Figures, p Params, kinds []Device) Workload {
	first := group[0]
	w := Workload{Namespace: first.claim.Namespace, Workload: first.workload, Claims: len(group), Asked: first.asked}
	several := slices.ContainsFunc(group, func(h *holding) bool { return len(h.uses) > 1 })
	s := f.of(group, p.Step)
	w.Hours, w.Memory, w.Activity = s.memoryFor.Hours(), s.memory, s.activity
	needed, activityKnown := float64(w.Asked.Multiprocessors), s.activityOfAll && s.activityFor >= p.Seen
	if activityKnown {
		needed *= min(1, s.busiest*(1+p.Margin))
	}
	say := func(v Verdict, format string, args ...any) Workload {
		w.Verdict, w.Message = v, fmt.Sprintf(format, args...)
		return w
	}
	switch {
	case w.Asked.shared:
		return say(Share, "of shares there are figures, and no advice")
	case several:
		return say(Several, "of claims for several devices there are figures, and no advice")
	case s.without > 0:
		return say(NoFigures, "of %d of %d claims there are no figures", s.without, len(group))
	case s.memoryFor < p.Seen:
		return say(TooLittle, "it was seen for %.1f hours, and advice takes %.1f", s.memoryFor.Hours(), p.Seen.Hours())
	case w.Memory.Max*(1+p.Margin) > float64(w.Asked.Memory):
		return say(Exceeds, "with the margin it needs %s of memory, and has %s", gib(w.Memory.Max*(1+p.Margin)), gib(float64(w.Asked.Memory)))
	}
	unknown := false
	for i := range kinds {
		switch k := &kinds[i]; {
		case !holds(k, &w, p.Margin):
		case w.Asked.Multiprocessors == 0 || k.Multiprocessors == 0:
			unknown = true
		case float64(k.Multiprocessors) >= needed:
			w.Suffices = k
			var but []string
			if !activityKnown {
				but = append(but, "its activity is not known, so the device has as many multiprocessors")
			}
			if s.hole != "" {
				but = append(but, s.hole)
			}
			return say(Smaller, "%s", strings.Join(but, "; "))
		}
	}
	switch {
	case unknown:
		return say(Fits, "a smaller device has the memory, but the multiprocessors are not known: those of whole GPUs are where a node offers "+
			"the partition that takes all of one")
	case !activityKnown:
		return say(Fits, "its activity is not known, and no smaller device has as many multiprocessors")
	}
	return say(Fits, "no smaller device has what it used, with the margin")
}

// holds reports whether a smaller device of the same product has the memory for a workload.
func holds(k *Device, w *Workload, margin float64) bool {
	return k.Product == w.Asked.Product && k.smaller(&w.Asked) && extras(k.Shape) == extras(w.Asked.Shape) &&
		float64(k.Memory) >= w.Memory.Max*(1+margin)
}

// extras are what a profile has besides slices and memory, or lacks, such as +me and -me: media engines.
func extras(shape string) string {
	if at := strings.IndexAny(shape, "+-"); at >= 0 {
		return shape[at:]
	}
	return ""
}

// follow gives all claims the devices that are advised: one after the other, the largest first, as if its pod were restarted. Whoever
// does not fit keeps what it has. CPU, memory and affinities of pods are not looked at.
func follow(nodes []*node, held []*holding) error {
	var moving []*holding
	for _, h := range held {
		if h.follows != nil {
			moving = append(moving, h)
		}
	}
	slices.SortStableFunc(moving, func(a, b *holding) int { return cmp.Compare(b.follows.Memory, a.follows.Memory) })
	for _, h := range moving {
		h.on.state.Release(h.uses...)
		at, uses, err := place(nodes, h)
		if err != nil {
			return fmt.Errorf("replay claim %s/%s: %w", h.claim.Namespace, h.claim.Name, err)
		}
		at.state.Allocate(uses...)
	}
	return nil
}

// place finds the node where a device is lost least, as cleave-scheduler does with the strategy pack, or the devices that are there now.
func place(nodes []*node, h *holding) (at *node, uses []packing.Use, err error) {
	at, uses = h.on, h.uses
	var best *packing.Cost
	for _, n := range nodes {
		match := packing.NewBits(len(n.kinds))
		for i := range n.kinds {
			if n.kinds[i] == *h.follows {
				match.Set(i)
			}
		}
		found, fits, err := n.state.Fit(packing.Request{Count: 1, Match: match, Tolerated: packing.NewBits(len(n.kinds))})
		if err != nil {
			return nil, nil, err
		}
		if !fits {
			continue
		}
		if cost := n.state.Cost(found); best == nil || packing.Pack.Compare(cost, *best) < 0 {
			best, at, uses = &cost, n, found
		}
	}
	return at, uses, nil
}

// gib is an amount of memory for people.
func gib(bytes float64) string { return fmt.Sprintf("%.1f GiB", bytes/(1<<30)) }
