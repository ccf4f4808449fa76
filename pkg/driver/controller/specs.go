// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// Reasons of Events about the files of the NVIDIA driver.
const (
	reasonIncomplete = "DriverIncomplete" // device nodes or files of the driver are missing: GPUs cannot be injected into containers
	reasonComplete   = "DriverComplete"   // no device node or file of the driver is missing any more
)

// considerSpecs reports which GPUs cannot be injected into containers, and why, and which can be again.
func (p *Plan) considerSpecs(o *Observed) {
	before, now := p.Memory.Incomplete, map[string]string{}
	devices := map[string][]string{} // by reason
	for _, device := range slices.Sorted(maps.Keys(o.Incomplete)) {
		reason := o.Incomplete[device].Error()
		now[device] = reason
		if was, ok := before[device]; !ok || was != reason {
			devices[reason] = append(devices[reason], device)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(devices)) {
		p.report(Report{
			Log: "GPUs cannot be injected into containers", Err: errors.New(reason), Values: []any{"gpus", devices[reason]},
			Warning: true, Reason: reasonIncomplete, Message: strings.Join(devices[reason], ", ") + ": " + reason,
		})
	}
	var back []string
	for _, device := range slices.Sorted(maps.Keys(before)) {
		if _, still := now[device]; !still {
			back = append(back, device)
		}
	}
	if len(back) > 0 {
		p.report(Report{
			Log: "GPUs can be injected into containers again", Values: []any{"gpus", back},
			Reason: reasonComplete, Message: strings.Join(back, ", ") + ": device nodes and files of the driver are complete",
		})
	}
	p.Memory.Incomplete = now
}
