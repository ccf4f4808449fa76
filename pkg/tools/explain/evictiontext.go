// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"
)

// Eviction says which pods of a lower priority could be evicted for one that fits no node, or why none.
type Eviction struct {
	// Priority is the pod's own, Scheduler the one that it names.
	Priority  int32  `json:"priority"`
	Scheduler string `json:"scheduler,omitempty"`
	// Node is the one where the least is lost; empty where nobody can be evicted.
	Node string `json:"node,omitempty"`
	// Victims are the pods to evict there; none where those that are ending leave enough.
	Victims []Victim `json:"victims,omitempty"`
	// NotAllowed is how many of these evictions PodDisruptionBudgets do not allow.
	NotAllowed int `json:"notAllowed,omitempty"`
	// OtherNodes is how many other nodes would do.
	OtherNodes int `json:"otherNodes,omitempty"`
	// Causes are why nobody can be evicted.
	Causes []Cause `json:"causes,omitempty"`
}

// Victim is a pod that could be evicted.
type Victim struct {
	// Pod is "namespace/name".
	Pod      string `json:"pod"`
	Priority int32  `json:"priority"`
	// Devices are those of the pod's claims on the node.
	Devices []string `json:"devices,omitempty"`
}

// text names a victim with what it has.
func (v *Victim) text() string {
	return fmt.Sprintf("%s (priority %d; %s)", v.Pod, v.Priority, list(v.Devices, mostNames))
}

// lines write who could be evicted.
func (e *Eviction) lines(line func(string, ...any)) {
	line("")
	switch {
	case e.Node == "":
		if slices.ContainsFunc(e.Causes, func(c Cause) bool { return c.Kind != EvictionUnknown }) {
			line("Nobody can be evicted for it:")
		} else {
			line("Who could be evicted for it is not known:")
		}
		for _, c := range e.Causes {
			c.print(line, "  ", false)
		}
		return
	case len(e.Victims) == 0:
		line("Nobody has to be evicted: on node %s, pods that are ending leave enough devices", e.Node)
		if e.OtherNodes > 0 {
			line("  %s.", e.others())
		}
		return
	}
	var victims []string
	for i := range e.Victims {
		victims = append(victims, e.Victims[i].text())
	}
	line("Eviction of pods of a lower priority would make room: on node %s %s", e.Node, list(victims, mostNames))
	if e.OtherNodes > 0 {
		line("  %s.", e.others())
	}
	if e.NotAllowed > 0 {
		line("  PodDisruptionBudgets do not allow %d of %d evictions.", e.NotAllowed, len(e.Victims))
	}
	named := ""
	if e.Scheduler != "" {
		named = "; the pod names " + e.Scheduler
	}
	line("  cleave-scheduler does this, kube-scheduler does not%s.", named)
}

// others says how many other nodes would do.
func (e *Eviction) others() string {
	if e.OtherNodes == 1 {
		return "1 other node would do"
	}
	return fmt.Sprintf("%d other nodes would do", e.OtherNodes)
}

// describeEviction writes why nobody can be evicted.
func (c *Cause) describeEviction() {
	theirs := fmt.Sprintf("%d to %d", c.least, c.most)
	if c.least == c.most {
		theirs = fmt.Sprint(c.most)
	}
	switch c.Kind {
	case PreemptsNever:
		c.Message = "the pod's preemptionPolicy is Never"
	case PodGroupMember:
		c.Message = "the pod is of a PodGroup, whose members evict nobody for devices"
	case NotLower:
		c.Message = fmt.Sprintf("no pod with such devices has a priority below %d, the pod's own: theirs are %s", c.want, theirs)
		if c.name != "" {
			c.Message = fmt.Sprintf("pods with priorities of %s keep too many devices; the pod's own is %d", theirs, c.want)
		}
		if c.least == c.most {
			c.Message = strings.NewReplacer("theirs are", "theirs is", "with priorities", "with a priority").Replace(c.Message)
		}
	case SharedClaim:
		c.Message = "pods that are as important, or more, share claims with others: " + claimsText(c.Claims)
	case UnusedClaim:
		c.Message = "claims are allocated, and no pod uses them: " + claimsText(c.Claims)
		c.Remedy = "delete those that nobody needs"
	case ForeignClaim:
		c.Message = "claims are used by other objects than pods: " + claimsText(c.Claims)
	case ElsewhereClaim:
		c.Message = "claims are reserved for pods that are not on their node: " + claimsText(c.Claims)
	case StuckPod:
		c.Message = "pods that should have ended have claims still: " + claimsText(c.Claims)
		c.Remedy = "see why they hang: kubectl describe pod"
	case NotEnough:
		c.Message = "the devices would not suffice even if all were free"
	default:
		c.Message = "it cannot be predicted: " + c.name
	}
}
