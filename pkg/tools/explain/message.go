// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
	"github.com/cleave-dra/cleave/pkg/tools/suggest"
)

// noSuchKey is in errors about attributes and capacities that a device lacks (cel-go, interpreter).
const noSuchKey = "no such key"

// Limits of lists in messages.
const (
	mostClaims = 3
	mostNames  = 3
)

// describe writes the message of a cause, of so many nodes.
func (c *Cause) describe(nodes int) {
	if c.limit != "" || c.Kind == NoNode {
		c.describeLimit()
		return
	}
	switch c.Kind {
	case Gated, NotCreated, NoScheduler, SchedulerSays, SchedulerIgnores, Quota, NotCounted, PodOver:
		c.describeWait()
	case ClaimMissing, TemplateMissing, ClaimBusy, NotAllocated, ClassMissing, Invalid:
		c.describeObject()
	case UnknownAttribute, UnknownCapacity:
		c.describeName()
	case Elsewhere, NodeAffinity, Cordoned, NodeTaint, DevicePlugin, NotPublishing, Incomplete, InvalidPool, ClassSelector:
		c.describeNode(nodes)
	case PreemptsNever, PodGroupMember, NotLower, SharedClaim, UnusedClaim, ForeignClaim, ElsewhereClaim, StuckPod, NotEnough, EvictionUnknown:
		c.describeEviction()
	default:
		c.describeDevices(nodes)
	}
}

func (c *Cause) describeObject() {
	switch c.Kind {
	case ClaimMissing:
		c.Message = fmt.Sprintf("ResourceClaim %s does not exist", c.name)
		c.Remedy = "create it, or correct the pod's spec.resourceClaims"
	case TemplateMissing:
		c.Message = fmt.Sprintf("ResourceClaimTemplate %s does not exist in the pod's namespace", c.name)
		c.Remedy = "create it: the pod's claim follows within seconds"
	case ClaimBusy:
		c.Message = fmt.Sprintf("claim %s cannot be used: %s", c.Claim, c.name)
	case NotAllocated:
		c.Message = fmt.Sprintf("claim %s has no devices: the pod was given its node without them, as by spec.nodeName", c.Claim)
		c.Remedy = "create the pod anew without spec.nodeName: a scheduler allocates the devices"
	case ClassMissing:
		c.Message = fmt.Sprintf("DeviceClass %s does not exist", c.name) + suggest.Question(c.Suggestions...)
		c.Remedy = "create it, or choose one of kubectl get deviceclasses"
		if strings.HasSuffix(c.name, ".nvidia.com") {
			c.Remedy = "it is of NVIDIA's driver: choose one of kubectl get deviceclasses, or have Cleave serve it: docs/nvidia-compatible.md"
		}
		if c.Claim == "" {
			c.Message = fmt.Sprintf("no DeviceClass serves the extended resource %s, and no node advertises it%s",
				c.name, suggest.Question(c.Suggestions...))
			c.Remedy = "set extendedResourceName in a DeviceClass, or use a resource that kubectl get deviceclasses -o wide lists"
		}
	default:
		c.Message = "the scheduler fails: " + c.name
		if strings.Contains(c.name, noSuchKey) {
			c.Remedy = "the selector reads an attribute that a device lacks: select the type first, or use a narrower class"
		}
	}
}

func (c *Cause) describeNode(nodes int) {
	it, has, its := "the node", "has", "its"
	if nodes > 1 {
		it, has, its = "they", "have", "their"
	}
	switch c.Kind {
	case Elsewhere:
		c.Message = fmt.Sprintf("claim %s is allocated devices of another node", c.Claim)
		if c.name != "" {
			c.Message = fmt.Sprintf("claim %s is allocated devices of node %s", c.Claim, c.name)
		}
	case NodeAffinity:
		c.Message = "the pod's node selector or affinity excludes " + map[bool]string{true: "them", false: "it"}[nodes > 1]
	case Cordoned:
		c.Message, c.Remedy = it+" "+map[bool]string{true: "are", false: "is"}[nodes > 1]+" cordoned", "kubectl uncordon"
	case NodeTaint:
		c.Message = fmt.Sprintf("%s the taint %s", cmp.Or(c.name, "the pod does not tolerate"), c.Taint)
	case DevicePlugin:
		c.Message = fmt.Sprintf("a device plugin serves %s there, so that the scheduler takes none of %s devices for it", c.name, its)
		c.Remedy = "kubectl describe node says how much of it is left"
	case NotPublishing:
		c.Message = fmt.Sprintf("%s %s no ResourceSlices of %s: no GPU, or the plugin does not run there", it, has, c.name)
		if nodes == 1 {
			c.Remedy = "if the node has GPUs, see the log of the plugin's pod there and the Events of the node"
		}
	case Incomplete:
		c.Message = fmt.Sprintf("the pool %s is incomplete: %d of %d slices", c.name, c.most, c.want)
		if c.most > c.want {
			c.Message = fmt.Sprintf("the pool %s has %d slices, but they say that it has %d", c.name, c.most, c.want)
		}
		c.Remedy = "the plugin may be publishing: try again; if it persists, see the plugin's log on that node"
	case InvalidPool:
		c.Message = "nothing is allocated from the pool: " + c.name
	default:
		c.Message = fmt.Sprintf("none of %s devices is of class %s: %s %s %s", its, c.name, it,
			map[bool]string{true: "offer", false: "offers"}[nodes > 1], c.kinds)
		if c.kinds == "" {
			c.Message = fmt.Sprintf("%s %s no devices of class %s", it, has, c.name)
		}
	}
}

func (c *Cause) describeDevices(nodes int) {
	are, do := fmt.Sprintf("%d devices are", c.Devices), fmt.Sprintf("%d devices do", c.Devices)
	if c.Devices == 1 {
		are, do = "1 device is", "1 device does"
	}
	switch c.Kind {
	case Selector:
		c.Message = fmt.Sprintf("%s not match %s%s", do, c.Selector.text(), c.Selector.values())
	case TooSmall:
		c.Message = are + " too small: " + shortages(c.Missing)
		switch {
		case len(c.Missing) == 0:
			c.Message = are + " too small for the amounts that the request takes"
		case c.Missing[0].Most == "":
			c.Message = fmt.Sprintf("%s not have the capacity %s: %s have %s", do, c.Missing[0].Name,
				map[bool]string{true: "it", false: "they"}[c.Devices == 1], list(c.known, 2*mostNames))
			if c.Devices == 1 {
				c.Message = strings.Replace(c.Message, ": it have ", ": it has ", 1)
			}
		}
	case DeviceTaint:
		c.Message = fmt.Sprintf("%s tainted %s", are, c.Taint)
		c.Remedy = inspect.TaintMeaning(c.Taint.Key)
	case InUse:
		c.Message = fmt.Sprintf("%s allocated to %s", are, claimsText(c.Claims))
	case Overdrawn:
		c.Message = fmt.Sprintf("%s refused, as more of %s is allocated than there is, to %s", are, c.name, claimsText(c.Claims))
		c.Remedy = "end one of these claims: until then the scheduler allocates nothing that consumes counters from this pool"
	case Counter:
		c.describeCounter()
	case Share:
		c.Message = fmt.Sprintf("%s shared, and too little is left: %s; allocated to %s", are, shortages(c.Missing), claimsText(c.Claims))
	case Count:
		c.Message = c.describeCount(nodes)
	case Constraint:
		c.Message = "enough devices are free, but no combination satisfies " + c.name
	case Together:
		c.Message = "each request fits on its own, but not all together"
		if c.want == 1 {
			c.Message = "the devices that match exclude each other"
		}
	case Timeout:
		c.Message = fmt.Sprintf("not known: the search takes more than %s. The scheduler ends it after 10 s on a node", searchTimeout)
		c.Remedy = "request fewer devices in one claim"
		if c.name != "" {
			c.Message, c.Remedy = c.name, ""
		}
	}
}

// describeCounter says which claims exclude devices: by their place, or by their engines.
func (c *Cause) describeCounter() {
	overlap, need := fmt.Sprintf("%d devices overlap", c.Devices), fmt.Sprintf("%d devices need", c.Devices)
	if c.Devices == 1 {
		overlap, need = "1 device overlaps", "1 device needs"
	}
	c.Message = fmt.Sprintf("%s with allocations of %s", overlap, claimsText(c.Claims))
	if c.lacksEngines() {
		c.Message = fmt.Sprintf("%s engines that are allocated to %s", need, claimsText(c.Claims))
	}
	if c.admin {
		c.Remedy = "admin access takes nothing, but kube-scheduler counts it (kubernetes/kubernetes#140729): use cleave-scheduler, " +
			"or a policy that offers whole GPUs alone: docs/recipes.md"
	}
}

// describeCount says how many of the requested devices fit, on one node or on the best of several.
func (c *Cause) describeCount(nodes int) string {
	requested := fmt.Sprintf("%d devices requested", c.want)
	if c.want == 1 {
		requested = "1 device requested"
	}
	only := "only"
	if nodes > 1 {
		only = "at most"
	}
	switch c.most {
	case 0:
		return requested + ", but none fits"
	case 1:
		return fmt.Sprintf("%s, but %s 1 fits", requested, only)
	default:
		return fmt.Sprintf("%s, but %s %d fit", requested, only, c.most)
	}
}

// text is the part of a selector that is false, on one line and not too long.
func (m *Mismatch) text() string {
	const most = 300
	text := strings.Join(strings.Fields(cmp.Or(m.Part, m.Expression)), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// values are the attributes that differ.
func (m *Mismatch) values() string {
	var parts []string
	for _, a := range m.Attributes {
		parts = append(parts, a.Name+" is "+list(a.Values, mostNames))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// String is a taint as kubectl writes it, with its time.
func (t *Taint) String() string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	text += ":" + t.Effect
	if t.Since != nil {
		text += " since " + t.Since.UTC().Format(time.DateTime) + " UTC"
	}
	return text
}

// shortages are amounts that are missing.
func shortages(missing []Shortage) string {
	var parts []string
	for _, m := range missing {
		parts = append(parts, fmt.Sprintf("%s %s requested, at most %s available", m.Name, m.Want, m.Most))
	}
	return strings.Join(parts, ", ")
}

// counters are the names of counters, without their sets.
func (c *Cause) counters() string {
	var names []string
	for _, m := range c.Missing {
		if _, name, _ := strings.Cut(m.Name, "/"); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return list(names, mostNames)
}

// claimsText names claims with their pods.
func claimsText(claims []Use) string {
	var names []string
	for _, u := range claims {
		name := u.Claim
		switch {
		case u.Ending:
			name += " (ending)"
		case len(u.Pods) > 0 && u.Since != nil:
			name += " (" + list(u.Pods, 1) + ", since " + minute(*u.Since) + ")"
		case len(u.Pods) > 0:
			name += " (" + list(u.Pods, 1) + ")"
		case u.Since != nil:
			name += " (no pod, since " + minute(*u.Since) + ")"
		}
		names = append(names, name)
	}
	return list(names, mostClaims)
}

// minute is a time for people.
func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") + " UTC" }

// list joins words, up to a limit.
func list(words []string, most int) string {
	if len(words) > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), len(words)-most)
	}
	return strings.Join(words, ", ")
}
