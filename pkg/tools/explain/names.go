// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// names are those that the cluster's devices have: "domain/name" of attributes and capacities, and the drivers.
type names struct {
	attributes, capacities, drivers map[string]bool
	seen                            map[contentOf]bool
}

// contentOf identifies equal slices of a driver.
type contentOf struct {
	driver string
	number int
}

func newNames() *names {
	return &names{attributes: map[string]bool{}, capacities: map[string]bool{}, drivers: map[string]bool{}, seen: map[contentOf]bool{}}
}

// add notes the names of a slice, unless those of an equal one are known.
func (n *names) add(s *resourceapi.ResourceSlice, content int) {
	key := contentOf{s.Spec.Driver, content}
	if n.seen[key] {
		return
	}
	n.seen[key], n.drivers[s.Spec.Driver] = true, true
	for i := range s.Spec.Devices {
		for name := range s.Spec.Devices[i].Attributes {
			n.attributes[qualified(s.Spec.Driver, name)] = true
		}
		for name := range s.Spec.Devices[i].Capacity {
			n.capacities[qualified(s.Spec.Driver, name)] = true
		}
	}
}

// qualified is a name with its domain, which is the driver where it has none.
func qualified(driver string, name resourceapi.QualifiedName) string {
	if strings.Contains(string(name), "/") {
		return string(name)
	}
	return driver + "/" + string(name)
}

// idsOf are names of a device without their domains.
func idsOf[V any](of map[resourceapi.QualifiedName]V) map[string]bool {
	ids := map[string]bool{}
	for name := range of {
		ids[resourcepool.Identifier(name)] = true
	}
	return ids
}

// Like are names, as "domain/name", that one which is not among them may be meant for: the same of another domain, or a similar one of
// this domain.
func Like(name string, all map[string]bool) []string {
	domain, id, _ := strings.Cut(name, "/")
	var ids, same []string
	for _, known := range slices.Sorted(maps.Keys(all)) {
		of, knownID, _ := strings.Cut(known, "/")
		if knownID == id {
			same = append(same, known)
		}
		if of == domain {
			ids = append(ids, knownID)
		}
	}
	if near := suggest.Nearest(id, ids); near != "" {
		return []string{domain + "/" + near}
	}
	return same
}

func suggestions(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// likeClass are the DeviceClasses that a missing one may be meant for.
func (c *Cluster) likeClass(name string) []string {
	var all []string
	for _, class := range c.Classes {
		all = append(all, class.Name)
	}
	slices.Sort(all)
	return suggestions(suggest.Nearest(name, all))
}

// likeResource are the extended resources that one which nobody serves may be meant for.
func (c *Cluster) likeResource(name string) []string {
	all := map[string]bool{}
	for _, class := range c.Classes {
		if class.Spec.ExtendedResourceName != nil {
			all[*class.Spec.ExtendedResourceName] = true
		}
	}
	for _, n := range c.Nodes {
		for resource := range n.Status.Allocatable {
			if strings.Contains(string(resource), "/") {
				all[string(resource)] = true
			}
		}
	}
	return suggestions(suggest.Nearest(name, slices.Sorted(maps.Keys(all))))
}

// explainNames adds names that no device has to the causes of what never fits, and leaves out what follows from them: the scheduler's
// error about one, amounts of one, and constraints on one.
func (s *search) explainNames(e *Explanation) {
	found := s.unknownNames()
	if len(found) == 0 {
		return
	}
	attribute := slices.ContainsFunc(found, func(c *Cause) bool { return c.Kind == UnknownAttribute })
	e.Causes = append(found.finish(0), slices.DeleteFunc(e.Causes, func(c Cause) bool {
		return c.Kind == Invalid && strings.Contains(c.name, noSuchKey)
	})...)
	e.Limits = slices.DeleteFunc(e.Limits, func(c Cause) bool {
		return attribute && c.Kind == Constraint || c.Kind == TooSmall && len(c.Missing) > 0 && c.Missing[0].Most == ""
	})
}

// unknownNames are those in selectors, capacities and constraints that no device of the cluster has.
func (s *search) unknownNames() (found causes) {
	if len(s.names.seen) == 0 {
		return nil // nothing is published, so that all names are unknown
	}
	unknown := func(kind Kind, claim, request, where, name string) {
		all := map[Kind]map[string]bool{UnknownAttribute: s.names.attributes, UnknownCapacity: s.names.capacities}[kind]
		if !all[name] {
			found.add(Cause{Kind: kind, Claim: claim, Request: request, name: name, where: where, Suggestions: Like(name, all)})
		}
	}
	for _, r := range s.requests {
		for _, sel := range r.selectors {
			if sel.CEL == nil {
				continue
			}
			compiled, err := selectors.Compile(sel.CEL.Expression)
			if err != nil {
				continue
			}
			attributes, capacities := compiled[0].Reads()
			for _, name := range attributes {
				unknown(UnknownAttribute, r.claim, r.name, "the selector of request "+r.name+" reads", name)
			}
			for _, name := range capacities {
				unknown(UnknownCapacity, r.claim, r.name, "the selector of request "+r.name+" reads", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
			s.unknownAmount(r, string(name), &found)
		}
	}
	for _, claim := range s.claims {
		for _, constraint := range claim.Spec.Devices.Constraints {
			for _, name := range []*resourceapi.FullyQualifiedName{constraint.MatchAttribute, constraint.DistinctAttribute} {
				if name != nil {
					unknown(UnknownAttribute, nameOf(claim), "", "the constraint needs", string(*name))
				}
			}
		}
	}
	return found
}

// unknownAmount adds a capacity of a request that no device has by this name: devices have them as their driver writes them.
func (s *search) unknownAmount(r *request, name string, found *causes) {
	domain, id, with := strings.Cut(name, "/")
	if !with {
		id = name
	}
	ids := map[string]bool{}
	for known := range s.names.capacities {
		of, knownID, _ := strings.Cut(known, "/")
		ids[knownID] = ids[knownID] || !with || of == domain
	}
	c := Cause{Kind: UnknownCapacity, Claim: r.claim, Request: r.name, name: name, where: "request " + r.name + " asks for"}
	switch {
	case ids[id] && !with:
		return
	case ids[id]: // devices of the driver write it without the domain, and so must requests (compareDeviceCapacity of the allocator)
		c.Suggestions = []string{id}
	default:
		c.Suggestions = suggestions(suggest.Nearest(id, slices.Sorted(maps.Keys(ids))))
	}
	found.add(c)
}

// describeName says that no device has a name.
func (c *Cause) describeName() {
	what := "attribute"
	if c.Kind == UnknownCapacity {
		what = "capacity"
	}
	c.Message = fmt.Sprintf("%s the %s %s, which no device has%s", c.where, what, c.name, suggest.Question(c.Suggestions...))
	if len(c.Suggestions) == 0 {
		c.Remedy = "kubectl get resourceslices -o yaml lists what devices have; those of Cleave are in docs/reference.md"
	}
}

// foreignParameters notes parameters that nobody reads: those for drivers of which no node has devices, or which are of none of the
// classes of the requests that the parameters are for.
func (s *search) foreignParameters() (notes []string) {
	if len(s.names.drivers) == 0 {
		return nil
	}
	for _, claim := range s.claims {
		for i := range claim.Spec.Devices.Config {
			config := &claim.Spec.Devices.Config[i]
			if config.Opaque == nil {
				continue
			}
			note := fmt.Sprintf("Claim %s has parameters for driver %s, ", nameOf(claim), config.Opaque.Driver)
			readers := resourcepool.ReadersOf(&claim.Spec.Devices, config, s.class)
			switch {
			case !s.names.drivers[config.Opaque.Driver]:
				near := suggest.Nearest(config.Opaque.Driver, slices.Sorted(maps.Keys(s.names.drivers)))
				note += "of which no node has devices" + suggest.Question(near) + map[bool]string{true: ".", false: ""}[near == ""]
			case readers == nil || slices.Contains(readers, config.Opaque.Driver):
				continue
			default:
				note += "and the classes of these requests are of " + strings.Join(readers, " and ") + ": nobody reads them."
			}
			notes = append(notes, note)
		}
	}
	return notes
}
