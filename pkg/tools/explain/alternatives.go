// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// mostAlternatives are listed.
const mostAlternatives = 6

// option is an alternative with what orders it.
type option struct {
	Alternative
	kind   string
	memory int64
}

// alternatives finds what would fit now in place of the first request that is refused by itself: fewer devices, a smaller share, or
// another class.
func (s *search) alternatives(ctx context.Context) []Alternative {
	at := slices.IndexFunc(s.requests, func(r *request) bool { return s.short[r] })
	if at < 0 || ctx.Err() != nil {
		return nil
	}
	r := s.requests[at]
	var found []option
	wanted := s.describeClass(ctx, r.class)
	if wanted.kind == "" && !resourcepool.SelectsDriver(s.class(r.class), s.Driver) {
		return nil // nothing of the driver replaces what another one has
	}
	if o := s.less(ctx, r); len(o.Nodes) > 0 {
		o.kind, o.memory = wanted.kind, wanted.memory
		found = append(found, o)
	}
	if len(found) > 0 && r.count > 1 {
		slices.Sort(found[0].Nodes)
		return []Alternative{found[0].Alternative} // one device of another class does not replace several
	}
	for _, class := range s.Classes {
		if ctx.Err() != nil {
			break
		}
		if class.Name == r.class || !resourcepool.SelectsDriver(class, s.Driver) {
			continue
		}
		o := s.describeClass(ctx, class.Name)
		if o.kind == "" || strings.Contains(o.kind, ",") || slices.ContainsFunc(found, func(f option) bool { return f.kind == o.kind }) {
			continue
		}
		if s.fill(ctx, &o, &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name, Tolerations: r.tolerations}); len(o.Nodes) > 0 {
			found = append(found, o)
		}
	}
	distance := func(o option) int64 { return max(o.memory-wanted.memory, wanted.memory-o.memory) }
	kind := func(o option) int {
		of, _, _ := strings.Cut(o.kind, " ")
		like, _, _ := strings.Cut(cmp.Or(wanted.kind, s.kindOfClass(r.class)), " ")
		switch {
		case of == like:
			return 0
		case strings.HasSuffix(like, "-"+of): // a share of a GPU in place of one of a partition
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(found, func(a, b option) int {
		return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(distance(a), distance(b)), cmp.Compare(a.Class, b.Class))
	})
	var all []Alternative
	for _, o := range found[:min(len(found), mostAlternatives)] {
		slices.Sort(o.Nodes)
		all = append(all, o.Alternative)
	}
	return all
}

// less is the refused request with fewer devices, with what of a shared device is left, or without its selectors.
func (s *search) less(ctx context.Context, r *request) option {
	o := option{Alternative: Alternative{Class: r.class}}
	for _, site := range s.open {
		v := s.judge(ctx, site, r)
		most, err := s.most(ctx, site, v)
		if err != nil {
			continue
		}
		if most > o.Count {
			o.Count, o.Nodes = most, nil
		}
		if most > 0 && most == o.Count {
			o.Nodes = append(o.Nodes, site.node.Name)
		}
	}
	exact := r.exactly().DeepCopy()
	if o.Count == 0 && len(r.capacity) > 0 {
		exact.Capacity = nil
		s.fill(ctx, &o, exact)
	}
	if o.Count == 0 && len(r.selectors) > 0 {
		exact.Selectors, o.WithoutSelectors = nil, true
		s.fill(ctx, &o, exact)
	}
	return o
}

// fill sets where one device fits, and how much of it if it is shared.
func (s *search) fill(ctx context.Context, o *option, exact *resourceapi.ExactDeviceRequest) {
	claim := claimFor(exact, 1)
	r := requestsOf(claim)[0]
	var room map[resourceapi.QualifiedName]resource.Quantity
	for _, site := range s.open {
		v := s.judge(ctx, site, r)
		if v.free == 0 || !s.fit(ctx, site, fmt.Sprintf("instead %s %t %t", o.Class, o.WithoutSelectors, exact.Capacity == nil), claim).ok {
			continue
		}
		o.Count = 1
		o.Nodes = append(o.Nodes, site.node.Name)
		if has, most := v.room["memory"], room["memory"]; v.room != nil && (room == nil || has.Cmp(most) > 0) {
			room = v.room
		}
	}
	for _, name := range slices.Sorted(maps.Keys(room)) {
		if q := room[name]; name != "shares" {
			o.Capacity = append(o.Capacity, fmt.Sprintf("%s %s", name, &q))
		}
	}
}

// describeClass says what a class selects: the type and profile of its devices, several with a comma, and the memory of the first.
func (s *search) describeClass(ctx context.Context, name string) option {
	o := option{Alternative: Alternative{Class: name}}
	class := s.class(name)
	if class == nil {
		return o
	}
	var kinds []string
	seen := map[int]bool{}
	for _, site := range s.open {
		for _, sl := range site.slices {
			if seen[s.slices.Content(sl)] {
				continue
			}
			seen[s.slices.Content(sl)] = true
			for i := range sl.Spec.Devices {
				if _, ok := s.selects(ctx, sl, i, class.Spec.Selectors); !ok {
					continue
				}
				if kind := kindOf(&sl.Spec.Devices[i]); !slices.Contains(kinds, kind) {
					kinds = append(kinds, kind)
				}
				if memory, ok := sl.Spec.Devices[i].Capacity["memory"]; ok && o.memory == 0 {
					o.memory = memory.Value.Value()
				}
			}
		}
	}
	o.kind = strings.Join(kinds, ",")
	return o
}
