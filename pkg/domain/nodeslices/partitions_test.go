// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// A board in MIG mode: profile names and placements as its driver reports them, and no others than those without a policy.
func TestObjects_Boards(t *testing.T) {
	for _, model := range []string{"a30", "gb200-nvl72", "gb300-nvl72", "gh200", "hgx-b300", "rtx-pro-6000"} {
		node := modelNode(t, model, 0)
		node.GPUs = node.GPUs[:1]
		var devices []string
		for _, s := range slicesOf(t, node) {
			for _, set := range s.SharedCounters {
				devices = append(devices, fmt.Sprintf("%s: %d counters", set.Name, len(set.Counters)))
			}
			for _, d := range s.Devices {
				line := []string{d.Name, *d.Attributes["type"].StringValue}
				if profile, ok := d.Attributes["profile"]; ok {
					line = append(line, *profile.StringValue)
				}
				for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
					amount := d.Capacity[name].Value
					line = append(line, fmt.Sprintf("%s %s", name, amount.String()))
				}
				for _, c := range d.ConsumesCounters {
					line = append(line, fmt.Sprintf("uses %d counters", len(c.Counters)))
				}
				devices = append(devices, strings.Join(line, ", "))
			}
		}
		checkGolden(t, "board-"+model+".yaml", devices)
	}
}

// names are the devices of each slice.
func names(t *testing.T, node *policy.Node) [][]string {
	t.Helper()
	var all [][]string
	for _, s := range slicesOf(t, node) {
		list := []string{}
		for _, set := range s.SharedCounters {
			list = append(list, fmt.Sprintf("counters %s (%d)", set.Name, len(set.Counters)))
		}
		all = append(all, append(list, namesOf(s.Devices)...))
	}
	return all
}

// A policy can have every profile of the board with the most.
func TestLimits_EveryProfile(t *testing.T) {
	node := modelNode(t, "rtx-pro-6000")
	node.Offers = slices.Repeat([]policy.Offer{{Whole: true, Partitions: &policy.PartitionOffer{Mode: policy.OnDemand}}}, len(node.GPUs))
	published, devices := slicesOf(t, node), 0
	checkLimits(t, published)
	for _, s := range published {
		devices += len(s.Devices)
	}
	if want := 31 * len(node.GPUs); devices != want {
		t.Errorf("got %d devices, want %d", devices, want)
	}
}
