// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/allocator"
)

var update = flag.Bool("update", false, "write golden files")

// schedulers differ in the features that they give the allocator. Those without any are schedulers that embed it, such as KAI
// up to 0.17.
var schedulers = []struct {
	name string
	structured.Features
}{
	{"no features", structured.Features{}},
	{"partitions", structured.Features{PartitionableDevices: true}},
	{"shares", structured.Features{ConsumableCapacity: true}},
	{"both", structured.Features{PartitionableDevices: true, ConsumableCapacity: true}},
	{"Kubernetes 1.37", structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true,
		PartitionableDevices: true, PrioritizedList: true,
	}},
}

// TestMatrix_Schedulers writes down which classes can be allocated under which example policy by schedulers of which features.
func TestMatrix_Schedulers(t *testing.T) {
	files, err := filepath.Glob("../../deployments/examples/policies/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no example policies", err)
	}
	deviceClasses := allocator.Classes(manifestClasses(t))
	text := &strings.Builder{}
	fmt.Fprintf(text, "%-14s %-20s", "policy", "class")
	for _, s := range schedulers {
		fmt.Fprintf(text, " %-16s", s.name)
	}
	fmt.Fprintln(text)
	for _, file := range append(files, "") {
		name, rules := "built-in", []v1alpha1.Rule(nil)
		if file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := v1alpha1.DecodeNodePolicy(data)
			if err != nil {
				t.Fatal(err)
			}
			name, rules = strings.TrimSuffix(filepath.Base(file), ".yaml"), p.Rules
		}
		published := Cleave(offeredNode(t, "hgx-h100", rules...))
		for _, class := range []string{"gpu.cleave.dev", "mig.cleave.dev", timeSlice, mps} {
			fmt.Fprintf(text, "%-14s %-20s", name, class)
			for _, s := range schedulers {
				fmt.Fprintf(text, " %-16s", allocates(t, s.Features, deviceClasses, published, class))
			}
			fmt.Fprintln(text)
		}
	}
	var lines []string
	for line := range strings.Lines(text.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	got := strings.Join(lines, "\n") + "\n"
	golden := filepath.Join("testdata", "schedulers.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", golden, diff)
	}
}

// allocates says whether an allocator with some features allocates a device of a class on an empty node.
func allocates(t *testing.T, f structured.Features, deviceClasses allocator.Classes, published []*resourceapi.ResourceSlice, class string) string {
	t.Helper()
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	a, err := structured.NewAllocator(t.Context(), f, state, deviceClasses, published,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: f.ConsumableCapacity}))
	if err != nil {
		return "error"
	}
	node := &corev1.Node{}
	node.Name = nodeName
	claim := newClaimOf("claim", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{workload.Request("gpu", class, 1)},
	}})
	results, err := a.Allocate(t.Context(), node, []*resourceapi.ResourceClaim{claim})
	switch {
	case err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode):
		return "error"
	case len(results) == 0:
		return "-"
	case len(results[0].Devices.Results) == 1 && results[0].Devices.Results[0].ShareID == nil && (class == timeSlice || class == mps):
		return "unshared"
	default:
		return "yes"
	}
}
