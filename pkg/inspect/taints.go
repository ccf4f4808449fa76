// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/publish"
)

// Effects of taints.
const (
	effectNone       = string(resourceapi.DeviceTaintEffectNone)
	effectNoSchedule = string(resourceapi.DeviceTaintEffectNoSchedule)
)

// meanings of the taints that the plugin sets.
var meanings = map[string]string{
	publish.TaintOccupied: "a partition lies in its place that no claim holds: somebody else's, one that is still in use after it was " +
		"given back, or one of a layout that is not made yet; cleave inspect on the node tells which",
	publish.TaintNoMPS:      "cleave mps-supervisor does not answer on the node: running programs go on, new claims wait",
	publish.TaintUnhealthy:  "the GPU is in trouble: the value says in which; the taint goes once the driver says that it is well again",
	publish.TaintIncomplete: "device nodes or files of the NVIDIA driver are missing, which the Event DriverIncomplete names: claims that are prepared stay, new ones wait",
	publish.TaintConflict:   "somebody else hands the GPU out, too, such as a device plugin: leave it to one of the two",
	publish.TaintDraining:   "the plugin lets go of the NVIDIA driver, for an update of it or because it goes away: what claims hold stays, new claims wait",
	publish.TaintWithdrawn:  "the node offers it no more: what claims hold stays until they are gone",
}

// taintOf is a taint with its meaning.
func taintOf(key, value, effect string) Taint {
	meaning, known := meanings[key]
	if !known {
		meaning = "not one of Cleave's own: ask who set it"
	}
	return Taint{Key: key, Value: value, Effect: effect, Meaning: meaning}
}
