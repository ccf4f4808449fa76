// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/pkg/golden"
)

// TestMatrix_Occupied writes down what the allocators of which release allocate of one GPU that a claim has already: refused is right, but
// for a second share of the kind and for a second partition; twice is a GPU for two claims that cannot have it both (kubernetes#139034).
func TestMatrix_Occupied(t *testing.T) {
	inventory := model(t, "hgx-h100")
	inventory.GPUs = inventory.GPUs[:1]
	published := Cleave(offered(inventory))
	const whole, partition = "gpu.cleave.dev", "mig.cleave.dev"
	q := query{
		Classes: manifestClasses(t), Node: nodeName, Slices: [][]*resourceapi.ResourceSlice{published},
		Features: []structured.Features{{PartitionableDevices: true, ConsumableCapacity: true}},
	}
	classes := []string{timeSlice, mps, partition, whole}
	for _, first := range classes {
		for _, then := range classes {
			q.Claims = append(q.Claims, claimsOf(first, then))
		}
	}
	allocators := []struct{ name, module string }{
		{"1.35.4", "allocators/v1.35"}, {"1.36.1", "allocators/v1.36.1"}, {"1.36.2", "allocators/v1.36"}, {"1.37.2", "allocators"},
	}
	lines := []string{fmt.Sprintf("%-20s %-20s", "first", "then")}
	for _, claims := range q.Claims {
		lines = append(lines, fmt.Sprintf("%-20s %-20s", claims[0].Name, claims[1].Name))
	}
	for _, a := range allocators {
		lines[0] += fmt.Sprintf(" %-8s", a.name)
		for i, o := range ask(t, a.module, q) {
			lines[i+1] += fmt.Sprintf(" %-8s", second(t, published, o))
		}
	}
	golden.Check(t, filepath.Join("testdata", "occupied.txt"), trimLines(strings.Join(lines, "\n")))
}

// second says what the second of two claims got of a GPU.
func second(t *testing.T, published []*resourceapi.ResourceSlice, o outcome) string {
	t.Helper()
	if o.Error != "" || len(o.Results) == 0 {
		t.Fatalf("nothing is allocated to the first claim: %s", o.Error)
	}
	var devices []resourceapi.DeviceRequestAllocationResult
	for _, r := range o.Results {
		devices = append(devices, r.Devices.Results...)
	}
	switch {
	case len(o.Results) == 1:
		return "refused"
	case len(OverAllocated(published, devices)) > 0:
		return "twice"
	default:
		return "yes"
	}
}
