// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// timeout bounds the search for an order of one unit's operations, which takes long only where there is none.
const timeout = 20 * time.Second

// operation is what happens to a unit: a GPU with its partitions, or a device that is a unit of its own.
type operation struct {
	kind  operationKind
	claim string
	// devices of the unit that the claim owns.
	devices []Allocated
	event   Event
}

type operationKind string

const (
	acquire operationKind = "acquire"
	release operationKind = "release"
	holding operationKind = "hold"
)

// owner is a claim with what it owns of a unit.
type owner struct {
	claim   string
	devices []Allocated
}

// owners are those of a unit, in order of claims. They are never changed in place.
type owners []owner

func (o owners) find(claim string) (int, bool) {
	return slices.BinarySearchFunc(o, claim, func(have owner, want string) int { return strings.Compare(have.claim, want) })
}

// checkOwners checks that the operations on each unit have an order in which each is admissible.
func (c *checker) checkOwners() []Violation {
	units := map[string][]porcupine.Operation{}
	for _, cl := range c.claims {
		for _, t := range cl.tenures {
			c.addTenure(units, cl, t)
		}
	}
	var all []Violation
	for _, unit := range slices.Sorted(maps.Keys(units)) {
		if v := c.checkUnit(unit, units[unit]); v != nil {
			all = append(all, *v)
		}
	}
	return all
}

// addTenure adds the operations of one tenure to the units that it has something of.
func (c *checker) addTenure(units map[string][]porcupine.Operation, cl *claim, t *tenure) {
	byUnit := map[string][]Allocated{}
	for _, a := range cl.owned(t) {
		unit := c.unit(a.Device)
		byUnit[unit] = append(byUnit[unit], a)
	}
	for unit, devices := range byUnit {
		add := func(kind operationKind, in span, event Event) {
			units[unit] = append(units[unit], porcupine.Operation{
				Input: operation{kind, cl.uid, devices, event}, Call: int64(in.from), Return: int64(in.to),
			})
		}
		add(acquire, t.acquire, *t.prepared.returned)
		for _, h := range t.holds {
			add(holding, h.span, h.event)
		}
		for _, h := range c.containerHolds(cl, t) {
			add(holding, h.span, h.event)
		}
		released := t.release
		if h := c.outlives(cl, t); h != nil {
			add(holding, h.span, h.event)
			released.to = h.to
		}
		if t.ended != nil {
			add(release, released, *t.ended)
		}
	}
}

// units are what can be owned.
type units struct {
	// counters and devices by name, as they were last published.
	counters map[string]Counters
	devices  map[string]Device
}

// unit is the counter set of a device, or the device itself.
func (u units) unit(device string) string {
	if set := u.devices[device].Set; set != "" {
		return set
	}
	return device
}

// checkUnit looks for an order of a unit's operations.
func (u units) checkUnit(unit string, operations []porcupine.Operation) *Violation {
	slices.SortStableFunc(operations, func(a, b porcupine.Operation) int { return int(min(max(a.Call-b.Call, -1), 1)) })
	model := porcupine.Model{
		Init: func() any { return owners(nil) },
		Step: func(state, input, _ any) (bool, any) { return u.apply(unit, state.(owners), input.(operation)) },
		Equal: func(a, b any) bool {
			return slices.EqualFunc(a.(owners), b.(owners), func(x, y owner) bool { return x.claim == y.claim })
		},
	}
	result, info := porcupine.CheckOperationsVerbose(model, operations, timeout)
	if result == porcupine.Ok {
		return nil
	}
	if result == porcupine.Unknown {
		return &Violation{
			Rule: RuleOwner, Events: []Event{operations[0].Input.(operation).event},
			Text: fmt.Sprintf("No order of the %d operations on %s was found within %s. Nothing can be said of its owners.",
				len(operations), unit, timeout),
		}
	}
	return u.explainOwners(unit, operations, info)
}

// apply is the specification: what a unit is after an operation, and whether it is admissible.
func (u units) apply(unit string, have owners, op operation) (bool, owners) {
	at, owned := have.find(op.claim)
	switch {
	case op.kind == holding:
		return owned, have
	case op.kind == release && owned:
		return true, slices.Delete(slices.Clone(have), at, at+1)
	case op.kind == release || owned: // both can be repeated
		return true, have
	}
	next := slices.Insert(slices.Clone(have), at, owner{op.claim, op.devices})
	return u.excess(unit, next) == "", next
}

// excess says what owners have too much of a unit; empty where they have not.
func (u units) excess(unit string, have owners) string {
	consumed, counted := map[string]int64{}, map[string]int{}
	used := map[string]int64{}
	for _, o := range have {
		for _, a := range o.devices {
			d := u.devices[a.Device]
			counted[a.Device]++
			if n := counted[a.Device]; n > 1 && !d.Shared {
				return fmt.Sprintf("device %s has %d owners and is for one", a.Device, n)
			}
			if counted[a.Device] == 1 {
				for name, n := range d.Consumes {
					used[name] += n
				}
			}
			for name, n := range a.Consumed {
				consumed[a.Device+" "+name] += n
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(consumed)) {
		device, name, _ := strings.Cut(key, " ")
		if limit, ok := u.devices[device].Capacity[name]; ok && consumed[key] > limit {
			return fmt.Sprintf("the sharers of %s have %d of its %d %s", device, consumed[key], limit, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if limit := u.counters[unit].Values[name]; used[name] > limit {
			return fmt.Sprintf("the owners of devices of %s have %d of its %d %s", unit, used[name], limit, name)
		}
	}
	return ""
}

// explainOwners words why the operations on a unit have no order: by the longest that was found, and the first operation
// that does not fit after it.
func (u units) explainOwners(unit string, operations []porcupine.Operation, info porcupine.LinearizationInfo) *Violation {
	var longest []int
	for _, partition := range info.PartialLinearizations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	var have owners
	for _, i := range longest {
		_, have = u.apply(unit, have, operations[i].Input.(operation))
	}
	stuck := -1
	for i := range operations {
		if !slices.Contains(longest, i) && (stuck < 0 || operations[i].Return < operations[stuck].Return) {
			stuck = i
		}
	}
	op := operations[stuck].Input.(operation)
	v := &Violation{Rule: RuleOwner, Events: []Event{op.event}}
	var others []string
	for _, o := range have {
		if o.claim == op.claim {
			continue
		}
		others = append(others, o.claim)
		for _, i := range longest {
			if before := operations[i].Input.(operation); before.claim == o.claim && before.kind == acquire {
				v.Events = append(v.Events, before.event)
			}
		}
	}
	_, next := u.apply(unit, have, op)
	why := u.excess(unit, next)
	if op.kind == holding {
		why = "claim " + op.claim + " does not have its devices then"
	}
	v.Text = fmt.Sprintf("%s while %s had devices of %s. No order of the calls makes that admissible: %s.",
		describe(op.event), claimList(others), unit, why)
	return v
}

func claimList(uids []string) string {
	switch len(uids) {
	case 0:
		return "no other claim"
	case 1:
		return "claim " + uids[0]
	default:
		return "claims " + strings.Join(uids, ", ")
	}
}

// describe words an event of a unit, as a clause.
func describe(e Event) string {
	switch f := e.Fact.(type) {
	case Return:
		if f.Method == Prepare {
			return fmt.Sprintf("At %s claim %s was prepared with %s", e.At, f.Claim, strings.Join(deviceNames(f.Devices), ", "))
		}
		return fmt.Sprintf("At %s claim %s was unprepared", e.At, f.Claim)
	case Container:
		return fmt.Sprintf("At %s container %s of pod %s %s", e.At, f.Name, f.Pod, f.State)
	case Claim:
		return fmt.Sprintf("At %s claim %s was %s", e.At, f.UID, f.State)
	default:
		return fmt.Sprintf("At %s there was an event %s", e.At, f.Kind())
	}
}

func deviceNames(devices []Prepared) []string {
	var names []string
	for _, d := range devices {
		names = append(names, d.Device)
	}
	return names
}
