// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// verdicts say for each device of a node, by itself, whether a request can have it.
type verdicts struct {
	request *request
	causes  causes
	// ofClass are those of the request's class, matching those that its selectors select, too, free those that nothing refuses.
	ofClass, matching, free int
	// kinds are all devices of the node, by type and profile.
	kinds tally
	// classMiss is why the last device is not of the class, where none is.
	classMiss *Mismatch
	// room is left on the free shared device with the most memory.
	room map[resourceapi.QualifiedName]resource.Quantity
}

// judge finds what refuses each device of a node.
func (c *Cluster) judge(ctx context.Context, s *site, r *request) *verdicts {
	v := &verdicts{request: r}
	var classMiss func() *Mismatch
	class := c.class(r.class)
	if class == nil {
		return v
	}
	for _, p := range s.pools {
		if !p.IsUsable() {
			continue
		}
		for _, sl := range p.Slices {
			for i := range sl.Spec.Devices {
				if per := sl.Spec.PerDeviceNodeSelection; per != nil && *per {
					if reached, err := c.reachesDevice(s.node, &sl.Spec.Devices[i]); !reached || err != nil {
						continue
					}
				}
				v.kinds.add(kindOf(&sl.Spec.Devices[i]))
				if expression, ok := c.selects(ctx, sl, i, class.Spec.Selectors); !ok {
					classMiss = func() *Mismatch { return c.mismatch(ctx, sl, i, "class "+class.Name, expression) }
					continue
				}
				v.ofClass++
				cause := c.refusal(ctx, p, sl, i, v)
				if cause == nil || cause.Kind != Selector {
					v.matching++
				}
				if cause != nil {
					cause.Claim, cause.Request, cause.Devices = r.claim, r.name, 1
					v.causes.add(*cause)
				} else {
					v.free++
				}
			}
		}
	}
	if v.ofClass == 0 && classMiss != nil {
		v.classMiss = classMiss()
	}
	return v
}

// refusal is what refuses a device of the class; nil if nothing does. What freeing the device would not change comes first.
func (c *Cluster) refusal(ctx context.Context, p *pool, sl *resourceapi.ResourceSlice, device int, v *verdicts) *Cause {
	r, d := v.request, &sl.Spec.Devices[device]
	if expression, ok := c.selects(ctx, sl, device, r.selectors); !ok {
		return &Cause{Kind: Selector, name: r.class, Selector: c.mismatch(ctx, sl, device, "request "+r.name, expression)}
	}
	need := c.need(ctx, r, d)
	if !need.ok {
		return &Cause{Kind: TooSmall, name: r.class, Missing: tooSmall(r, d), known: slices.Sorted(maps.Keys(idsOf(d.Capacity)))}
	}
	for i := range d.Taints {
		if t := &d.Taints[i]; resourcepool.Refuses(*t, r.tolerations) {
			return &Cause{Kind: DeviceTaint, Taint: taintOf(t)}
		}
	}
	u := p.uses[d.Name]
	if u != nil && u.exclusive && !r.admin {
		return &Cause{Kind: InUse, Claims: slices.Clone(u.claims)}
	}
	if (!resourcepool.IsShared(d) || u == nil) && !r.uncounted {
		if len(p.overdrawn) > 0 && len(d.ConsumesCounters) > 0 { // checkAvailableCounters of the scheduler's allocator looks at all counters
			return &Cause{Kind: Overdrawn, name: list(p.overdrawn, mostNames), Claims: slices.Clone(p.overdraw)}
		}
		if missing, by := p.lacks(d); missing != nil {
			return &Cause{Kind: Counter, Missing: missing, Claims: by, admin: r.admin}
		}
	}
	if resourcepool.IsShared(d) {
		left, missing := leftOf(d, u, need)
		if missing != nil {
			return &Cause{Kind: Share, Missing: missing, Claims: slices.Clone(u.claims)}
		}
		if most, has := v.room["memory"], left["memory"]; v.room == nil || has.Cmp(most) > 0 {
			v.room = left
		}
	}
	return nil
}

func taintOf(t *resourceapi.DeviceTaint) *Taint {
	taint := &Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)}
	if t.TimeAdded != nil {
		since := t.TimeAdded.UTC()
		taint.Since = &since
	}
	return taint
}

// lacks returns the counters that have too little left for a device, with the claims that consume them.
func (p *pool) lacks(d *resourceapi.Device) (missing []Shortage, by []Use) {
	for _, c := range d.ConsumesCounters {
		for _, name := range slices.Sorted(maps.Keys(c.Counters)) {
			want, id := c.Counters[name].Value, resourcepool.CounterID{Pool: p.Pool.Pool, Set: c.CounterSet, Name: name}
			if left := p.left[id]; left < want.Value() {
				missing = append(missing, Shortage{Name: c.CounterSet + "/" + name, Want: want.String(), Most: fmt.Sprint(max(left, 0))})
				by = append(by, p.takers[id]...)
			}
		}
	}
	return missing, by
}

// leftOf returns the amounts that one more claim can get from a shared device, and those that are too small for it.
func leftOf(d *resourceapi.Device, u *use, need need) (left map[resourceapi.QualifiedName]resource.Quantity, missing []Shortage) {
	left = map[resourceapi.QualifiedName]resource.Quantity{}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		rest := d.Capacity[name].Value.DeepCopy()
		if u != nil {
			rest.Sub(u.consumed[name])
		}
		capacity := d.Capacity[name]
		most, some := reachable(&capacity, rest)
		if some {
			left[name] = most
		}
		if want := need.amount[name]; u != nil && rest.Cmp(want) < 0 {
			missing = append(missing, Shortage{Name: string(name), Want: want.String(), Most: most.String(), most: most.Value()})
		}
	}
	return left, missing
}

// tooSmall are the amounts that a device never has.
func tooSmall(r *request, d *resourceapi.Device) []Shortage {
	var missing []Shortage
	for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
		want := r.capacity[name]
		has, known := d.Capacity[name]
		short := Shortage{Name: string(name), Want: want.String()}
		if known {
			most, _ := reachable(&has, has.Value)
			if want.Cmp(most) <= 0 {
				continue
			}
			short.Most, short.most = most.String(), most.Value()
		}
		missing = append(missing, short)
	}
	return missing
}

// kindOf is the type of a device, and of a partition the profile, too.
func kindOf(d *resourceapi.Device) string {
	var words []string
	for _, name := range []resourceapi.QualifiedName{"type", "profile"} {
		if value := d.Attributes[name].StringValue; value != nil {
			words = append(words, *value)
		}
	}
	return strings.Join(words, " ")
}

// tally counts words in order of their first use.
type tally struct {
	order []string
	count map[string]int
}

func (t *tally) add(word string) {
	if t.count == nil {
		t.count = map[string]int{}
	}
	if t.count[word]++; t.count[word] == 1 {
		t.order = append(t.order, word)
	}
}
