// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Advise finds the restarts. GPUs with the fewest pods are tried first, and again until none more can be emptied; each
// pod is restarted once at most. The cluster cannot be asked again.
func (c *Cluster) Advise(ctx context.Context) (*Advice, error) {
	s, kept := c.load()
	a := &Advice{Driver: c.Driver, GPUs: len(s.gpus), Steps: []Step{}, Kept: kept}
	a.WholeNow, a.FragmentationNow = s.whole, s.fragmentation()
	if err := s.run(ctx, a); err != nil {
		return nil, err
	}
	a.WholeThen = s.whole
	s.settle(ctx)
	a.FragmentationThen = s.fragmentation()
	if c.waiting > 0 && len(a.Steps) > 0 {
		a.Notes = append(a.Notes, "Pods with claims that wait for a node may take the room first: there are "+strconv.Itoa(c.waiting)+".")
	}
	if s.unsure > 0 {
		a.Notes = append(a.Notes, "Among equally good nodes, CPU, memory and the like decide; no step depends on it.",
			"More restarts may be of use once these are done: ask again.")
	}
	a.Problems = c.problems
	return a, nil
}

func (s *search) fragmentation() float64 {
	states := make([]*packing.State, 0, len(s.nodes))
	for _, n := range s.nodes {
		if n.takesPods() {
			states = append(states, n.state)
		}
	}
	return packing.Fragmentation(states...)
}

// settle gives replacements whose node is not known to the first that has room: somewhere they are, and fill a hole.
func (s *search) settle(ctx context.Context) {
	for _, m := range s.moves {
		for _, at := range m.to {
			if found := s.plan(ctx, at.node, m.pod.demand); m.unsure && found.fits && !at.node.spends(found.uses, nil) {
				s.apply(at.node, m.pod, found.uses, 1)
				break
			}
		}
	}
}

// run takes steps as long as there are any.
func (s *search) run(ctx context.Context, a *Advice) error {
	for more := true; more; {
		more = false
		for _, g := range s.candidates() {
			if !g.movable() {
				continue // since a step before
			}
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("look for pods to restart: %w", err)
			}
			if step, ok := s.step(ctx, g); ok {
				a.Steps = append(a.Steps, step)
				more = true
			}
		}
	}
	return nil
}

// step empties a GPU, if that can be predicted and costs no other one: if need be with its node cordoned.
func (s *search) step(ctx context.Context, g *gpu) (Step, bool) {
	var step Step
	begin := s.mark().moves
	if !s.empty(ctx, g, false) {
		step.Cordon = g.on.name
		if !s.empty(ctx, g, true) {
			return Step{}, false
		}
	}
	for _, m := range s.moves[begin:] {
		p := m.pod
		step.Pods = append(step.Pods, m.advice())
		p.moved = true
		for _, to := range m.to {
			for _, u := range to.uses {
				to.node.gpuOf(u).received = true
			}
		}
		for _, u := range p.uses {
			left := p.on.gpuOf(u)
			left.pods = slices.DeleteFunc(left.pods, func(other *pod) bool { return other == p })
			freed := GPU{p.on.name, p.on.state.Model().GPUs[left.index].Name}
			if p.on.state.Whole(left.index) && !slices.Contains(step.Frees, freed) {
				step.Frees = append(step.Frees, freed)
			}
		}
	}
	return step, true
}

// advice is what the move says to people.
func (m *move) advice() Move {
	p := m.pod
	to, others := m.places()
	return Move{
		Namespace: p.object.Namespace, Pod: p.object.Name, UID: p.object.UID, Controller: ControllerOf(p.object), Budget: p.budget,
		From: p.on.place(p.uses), To: to, Or: others,
	}
}

// places are where the replacement would be, without devices where others may have taken them.
func (m *move) places() (first Place, others []Place) {
	for i, at := range m.to {
		p := at.node.place(at.uses)
		if m.unsure && !slices.Contains(m.spoiled, at.node) {
			p.Devices = []string{}
		}
		if i == 0 {
			first = p
		} else {
			others = append(others, p)
		}
	}
	return first, others
}

func (n *node) place(uses []packing.Use) Place {
	p := Place{Node: n.name}
	for _, u := range uses {
		p.Devices = append(p.Devices, n.state.Model().Devices[u.Device].Name)
	}
	return p
}
