// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// releases are the releases of Kubernetes whose allocators are tried, with the features that their kube-scheduler enables by
// default. Other schedulers embed one of them, such as KAI up to 0.17 that of 1.35, without features.
var releases = []struct {
	name, module string
	defaults     structured.Features
}{
	{"1.35", "allocators/v1.35", structured.Features{AdminAccess: true, PrioritizedList: true}},
	{"1.36", "allocators/v1.36", structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true,
		PrioritizedList: true,
	}},
	{"1.37", "allocators", structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, FractionalCapacityRange: true,
		PartitionableDevices: true, PrioritizedList: true,
	}},
}

// featureSets are the columns of the matrix; the last one is a release's defaults.
var featureSets = []struct {
	name string
	structured.Features
}{
	{"no features", structured.Features{}},
	{"partitions", structured.Features{PartitionableDevices: true}},
	{"shares", structured.Features{ConsumableCapacity: true}},
	{"both", structured.Features{PartitionableDevices: true, ConsumableCapacity: true}},
	{"defaults", structured.Features{}},
}

// query and outcome are those of the command allocators.
type query struct {
	Classes  []*resourceapi.DeviceClass
	Node     string
	Slices   [][]*resourceapi.ResourceSlice
	Features []structured.Features
	Claims   [][]*resourceapi.ResourceClaim
}

type outcome struct {
	Results []resourceapi.AllocationResult
	Error   string
}

// TestMatrix_Schedulers writes down which classes can be allocated under which example policy by the allocator of which release
// of Kubernetes with which features.
func TestMatrix_Schedulers(t *testing.T) {
	policies, published := examplePolicies(t)
	q := query{Classes: manifestClasses(t), Node: nodeName, Slices: published}
	for _, class := range []string{"gpu.cleave.dev", "mig.cleave.dev", timeSlice, mps} {
		q.Claims = append(q.Claims, claimsOf(class))
	}
	text := &strings.Builder{}
	fmt.Fprintf(text, "%-7s %-12s %-20s", "release", "policy", "class")
	for _, s := range featureSets {
		fmt.Fprintf(text, " %-11s", s.name)
	}
	fmt.Fprintln(text)
	for _, r := range releases {
		q.Features = nil
		for _, s := range featureSets[:len(featureSets)-1] {
			q.Features = append(q.Features, s.Features)
		}
		q.Features = append(q.Features, r.defaults)
		outcomes := ask(t, r.module, q)
		for _, policy := range policies {
			for _, claims := range q.Claims {
				class := claims[0].Name
				fmt.Fprintf(text, "%-7s %-12s %-20s", r.name, policy, class)
				for range featureSets {
					fmt.Fprintf(text, " %-11s", word(t, class, outcomes[0]))
					outcomes = outcomes[1:]
				}
				fmt.Fprintln(text)
			}
		}
	}
	golden.Check(t, filepath.Join("testdata", "schedulers.txt"), trimLines(text.String()))
}

// claimsOf are claims for one device of a class each, by the class's name.
func claimsOf(classes ...string) (claims []*resourceapi.ResourceClaim) {
	for _, class := range classes {
		claims = append(claims, newClaimOf(class, workload.ClaimSpec(class, 1)))
	}
	return claims
}

// trimLines removes spaces at the end of lines.
func trimLines(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}

// examplePolicies returns the example policies and the built-in one by name, and what a node with eight H100 publishes under each.
func examplePolicies(t *testing.T) (names []string, published [][]*resourceapi.ResourceSlice) {
	t.Helper()
	files, err := filepath.Glob("../../deployments/examples/policies/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no example policies", err)
	}
	for _, file := range files {
		data := readFile(t, file)
		p, err := v1alpha1.DecodeNodePolicy(data)
		must(t, err)
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".yaml"))
		published = append(published, Cleave(offeredNode(t, "hgx-h100", p.Rules...)))
	}
	return append(names, "built-in"), append(published, Cleave(offeredNode(t, "hgx-h100")))
}

// build builds the command of a module, or of this one, in a directory below.
func build(t *testing.T, module string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, ".")
	build.Dir, build.Env = module, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", module, err, out)
	}
	return program
}

// ask answers a query with the allocator of a module.
func ask(t *testing.T, module string, q query) []outcome {
	t.Helper()
	program := build(t, module)
	input, err := json.Marshal(q)
	must(t, err)
	run := exec.CommandContext(t.Context(), program)
	run.Stdin, run.Stderr = bytes.NewReader(input), os.Stderr
	output, err := run.Output()
	if err != nil {
		t.Fatalf("run the allocator of %s: %v", module, err)
	}
	var outcomes []outcome
	if err := json.Unmarshal(output, &outcomes); err != nil {
		t.Fatalf("decode the outcomes of %s: %v", module, err)
	}
	if want := len(q.Slices) * len(q.Claims) * len(q.Features); len(outcomes) != want {
		t.Fatalf("%s: %d outcomes, want %d", module, len(outcomes), want)
	}
	return outcomes
}

// word says whether a device of a class was allocated.
func word(t *testing.T, class string, o outcome) string {
	t.Helper()
	switch {
	case o.Error != "":
		t.Logf("%s: %s", class, o.Error)
		return "error"
	case len(o.Results) == 0:
		return "-"
	case (class == timeSlice || class == mps) && o.Results[0].Devices.Results[0].ShareID == nil:
		return "unshared"
	default:
		return "yes"
	}
}
