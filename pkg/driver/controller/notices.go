// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// Reasons of Events about notices, of which the exported ones are on claims, too.
const (
	ReasonNotice          = "NodeNotice"          // the node's machine is about to be taken away or restarted
	reasonNoticeEviction  = "NodeNoticeEviction"  // the pods with devices of the node are evicted before its machine goes
	ReasonNoticeWithdrawn = "NodeNoticeWithdrawn" // the node's machine stays: new claims can be allocated again
)

// noticeEvery is how often, while a notice is in force, claims without a report of it are looked for.
const noticeEvery = 5 * time.Second

// machine is the part of a plan about notices that the node's machine goes.
type machine struct{ *Plan }

// consider decides what follows from notices, and reports what has changed.
func (p machine) consider(o *Observed) {
	was := o.Memory.Notice
	now, next := notices.Decide(was, o.Notices, o.NoticePolicy, o.Now)
	p.Memory.Notice, p.Status.Notice, p.noticeAt = now, now, next
	switch {
	case !now.Holds() && was.Holds():
		message := fmt.Sprintf("Withdrawn: %s. New claims can be allocated again", was.String())
		p.report(Report{Log: "A notice about the node's machine is over", Values: []any{"source", was.Source, "notice", was.Text},
			Reason: ReasonNoticeWithdrawn, Message: message})
	case now.Holds() && (!now.Same(&was) || !now.Deadline.Equal(was.Deadline)):
		p.report(Report{Log: "The node's machine is about to go", Values: []any{"source", now.Source, "kind", now.Kind, "notice", now.Text,
			"deadline", now.Deadline, "evictAt", now.EvictAt}, Warning: true, Reason: ReasonNotice, Message: now.Advice(o.Now)})
	}
	if now.Evict && !was.Evict {
		p.report(Report{Log: "Evicting the pods of the node's devices", Values: []any{"source", now.Source, "notice", now.Text},
			Warning: true, Reason: reasonNoticeEviction, Message: now.Advice(o.Now)})
	}
}

// taints are on all devices while a notice is in force.
func (p machine) taints(node *policy.Node) []nodeslices.Taint {
	d := &p.Memory.Notice
	if !d.Holds() {
		return nil
	}
	var taints []nodeslices.Taint
	for i := range node.GPUs {
		for _, t := range taintAll(node, &node.GPUs[i], nodeslices.TaintNotice) {
			t.Value = string(d.Kind)
			if d.Evict {
				t.Effect = resourceapi.DeviceTaintEffectNoExecute
			}
			taints = append(taints, t)
		}
	}
	return taints
}
