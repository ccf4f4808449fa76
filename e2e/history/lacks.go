// SPDX-License-Identifier: Apache-2.0

package history

import "cmp"

// Lacks says what the rules go by and a history has nothing of. In such a history Check finds nothing, whatever happened: a
// source may have been silent, or names pods or the plugin otherwise than the others do. It expects claims of partitions and of
// MPS shares that were prepared for containers and given back.
func Lacks(h History, limits Limits) []string {
	program := cmp.Or(limits.Program, "cleave-node")
	pods := map[string]bool{} // that claims are reserved for
	for _, e := range h.Events {
		if c, ok := e.Fact.(Claim); ok {
			for _, pod := range c.Pods {
				pods[pod] = true
			}
		}
	}
	byProgram := func(fact Fact, change Change) (Hardware, bool) {
		f, ok := fact.(Hardware)
		return f, ok && f.Change == change && f.By == program
	}
	client := func(fact Fact) bool {
		f, ok := fact.(Hardware)
		return ok && f.Change == ServedStarted && pods[f.Pod]
	}
	answers := func(fact Fact, method Method) bool {
		f, ok := fact.(Return)
		return ok && f.Method == method && f.Error == ""
	}
	var lacks []string
	for _, want := range []struct {
		what string
		is   func(Fact) bool
	}{
		{"a counter set", func(fact Fact) bool { _, ok := fact.(Counters); return ok }},
		{"a device that consumes counters", func(fact Fact) bool { f, ok := fact.(Device); return ok && f.Set != "" && len(f.Consumes) > 0 }},
		{"a claim with devices", func(fact Fact) bool { f, ok := fact.(Claim); return ok && len(f.Devices) > 0 }},
		{"an answer to Prepare", func(fact Fact) bool { return answers(fact, Prepare) }},
		{"an answer to Unprepare", func(fact Fact) bool { return answers(fact, Unprepare) }},
		{"a container of a pod that has a claim", func(fact Fact) bool { f, ok := fact.(Container); return ok && pods[f.Pod] }},
		{"a partition that " + program + " created", func(fact Fact) bool { _, ok := byProgram(fact, PartitionCreated); return ok }},
		{"a partition that " + program + " destroyed", func(fact Fact) bool { _, ok := byProgram(fact, PartitionDestroyed); return ok }},
		{"a compute mode that " + program + " set", func(fact Fact) bool {
			f, ok := byProgram(fact, ComputeMode)
			return ok && f.Value != defaultMode
		}},
		{"a program of a pod that has a claim, with an MPS server", func(fact Fact) bool { return limits.PodsUnseen || client(fact) }},
	} {
		found := false
		for _, e := range h.Events {
			found = found || want.is(e.Fact)
		}
		if !found {
			lacks = append(lacks, want.what)
		}
	}
	return lacks
}
