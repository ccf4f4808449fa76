// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
	"github.com/cleave-dra/cleave/pkg/tools/selector"
)

// tiers are the types of devices in words, in order.
var tiers = []struct{ kind, words string }{
	{"gpu", "whole GPUs"}, {"mig", "partitions"}, {"timeslice", "time slices"}, {"mps", "MPS shares"},
	{"mig-timeslice", "time slices of partitions"}, {"mig-mps", "MPS shares of partitions"},
}

// offers says what kinds of devices there are, not how many: partitions on demand are published for every place that they may have.
func offers(kinds []string) string {
	profiles := map[string][]string{}
	known := map[string]bool{}
	for _, k := range kinds {
		kind, profile, _ := strings.Cut(k, " ")
		if known[kind] = true; profile != "" {
			profiles[kind] = append(profiles[kind], profile)
		}
	}
	var words []string
	for _, t := range tiers {
		if !known[t.kind] {
			continue
		}
		text := t.words
		if of := profiles[t.kind]; len(of) > 0 {
			slices.Sort(of)
			text += " (" + strings.Join(of, ", ") + ")"
		}
		words = append(words, text)
		delete(known, t.kind)
	}
	if len(known) > 0 {
		words = append(words, "other devices")
	}
	return strings.Join(words, ", ")
}

// kindOfClass is the type of device that the selectors of a class choose, of several the first; empty where they leave it open.
func (c *Cluster) kindOfClass(name string) string {
	class := c.class(name)
	if class == nil {
		return ""
	}
	if kinds := kindsOf(class.Spec.Selectors, c.Driver); len(kinds) > 0 && len(kinds) < len(tiers) {
		return kinds[0]
	}
	return ""
}

// kindsOf are the types of the driver's devices that selectors may choose: those that no part of them refuses. A part that looks at more
// than the type fails here, and refuses none.
func kindsOf(by []resourceapi.DeviceSelector, driver string) (kinds []string) {
	var parts []*selector.Selector
	for _, s := range by {
		if s.CEL == nil {
			continue
		}
		whole, err := selectors.Compile(s.CEL.Expression)
		if err != nil {
			return nil // it chooses nothing
		}
		terms, err := selectors.Compile(whole[0].Terms()...)
		if err != nil {
			terms = whole
		}
		parts = append(parts, terms...)
	}
	for _, t := range tiers {
		d := &resourceapi.Device{
			AllowMultipleAllocations: new(t.kind != "gpu" && t.kind != "mig"),
			Attributes:               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &t.kind}},
		}
		if !slices.ContainsFunc(parts, func(part *selector.Selector) bool {
			chosen, err := selector.MatchAll(context.Background(), []*selector.Selector{part}, driver, d)
			return err == nil && !chosen
		}) {
			kinds = append(kinds, t.kind)
		}
	}
	return kinds
}

// offered is the type of device of a class of the driver; empty for other classes.
func (c *Cluster) offered(name string) string {
	if class := c.class(name); class == nil || !resourcepool.SelectsDriver(class, c.Driver) {
		return ""
	}
	return c.kindOfClass(name)
}

// whyNot is why no node may offer the devices of a class of the driver.
func (c *Cluster) whyNot(name string) string {
	const instead = ": ask for what is offered below, or change a policy, docs/policy.md"
	// Nodes offer MPS only after the supervisor's first answer.
	const supervisor = ", or no MPS supervisor has answered on the nodes (see the pods of DaemonSet cleave-mps)"
	const noTier, noShare = "no policy offers this tier", "no node shares such partitions, by mig.share of its policy"
	switch c.offered(name) {
	case "":
		return ""
	case "mps":
		return noTier + supervisor + instead
	case "mig-mps":
		return noShare + supervisor + instead
	case "mig-timeslice":
		return noShare + instead
	case "mig":
		return "no board has this profile, or no policy offers it" + instead
	default:
		return noTier + instead
	}
}
