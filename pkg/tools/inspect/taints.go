// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// Effects of taints.
const (
	effectNone       = string(resourceapi.DeviceTaintEffectNone)
	effectNoSchedule = string(resourceapi.DeviceTaintEffectNoSchedule)
)

// meanings of Cleave's taints.
var meanings = map[string]string{
	nodeslices.TaintOccupied: "in its place is a partition without a claim, processes of an ended claim, a claim of the driver's other " +
		"name, or a change of the MIG mode, or the driver refuses the partition: docs/troubleshooting.md",
	nodeslices.TaintNoMPS:     "cleave-node mps-supervisor does not answer on the node: running programs continue, new claims wait",
	nodeslices.TaintUnhealthy: "the GPU is unhealthy: the value is the reason; the taint is removed on recovery",
	nodeslices.TaintIncomplete: "device nodes or files of the NVIDIA driver are missing, see the Event DriverIncomplete: prepared claims " +
		"stay, new ones wait",
	nodeslices.TaintNotice:   "the node's machine is about to be taken away (reclaim) or restarted (maintenance), see the Event NodeNotice",
	nodeslices.TaintConflict: "another driver offers the GPU too, such as a device plugin: leave it to one of the two",
	nodeslices.TaintDraining: "the plugin is releasing the NVIDIA driver, for an update or before its removal: allocations stay, " +
		"new claims wait",
	nodeslices.TaintReset: "the node's label gpu.cleave.dev/reset requests the GPU's reset: allocations stay, and once their claims have " +
		"ended it is reset and can be allocated again",
	nodeslices.TaintCordoned:     "cordoned by hand: allocations stay, new claims wait; cleave uncordon NODE GPU ends it",
	nodeslices.TaintWithdrawn:    "the node no longer offers it: allocations stay until their claims end",
	v1alpha1.AllocatedTwiceTaint: "two schedulers allocated it: it can be allocated again once no claim has it",
}

// byRules are the taints that only Cleave's own DeviceTaintRules set, one rule for each device.
var byRules = []string{v1alpha1.AllocatedTwiceTaint, nodeslices.TaintCordoned}

// TaintMeaning explains a taint of Cleave's, with a remedy; empty for others.
func TaintMeaning(key string) string { return meanings[key] }

func taintOf(key, value, effect string) Taint {
	meaning, known := meanings[key]
	if !known {
		meaning = "not set by Cleave"
	}
	return Taint{Key: key, Value: value, Effect: effect, Meaning: meaning}
}

// Closes reports whether the taint keeps new claims away.
func (t *Taint) Closes() bool { return t.Effect != effectNone }

// Withdrawn reports whether the taint marks a device that the node no longer offers.
func (t *Taint) Withdrawn() bool { return t.Key == nodeslices.TaintWithdrawn }
