// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// compatibleCluster is a node in NVIDIA-compatible mode with the DeviceClasses for it.
func compatibleCluster(t *testing.T, inventory *policy.Node) *cluster {
	t.Helper()
	all, err := Classes("../../deployments/nvidia-compatible")
	must(t, err)
	return clusterOf(t, inventory, Compatible(inventory), all)
}

func compatibleManifest(t *testing.T, name string) []runtime.Object {
	t.Helper()
	objects, err := workload.Load(filepath.Join("testdata", "nvidia-compatible", name+".yaml"))
	must(t, err)
	return objects
}

// Manifests in the style of those for NVIDIA's driver get, from the real allocator, what they ask for.
func TestCompatible_Manifests(t *testing.T) {
	for name, want := range map[string]map[string][]string{
		"gpus":    {"one": {"7 gpu"}, "two": {"6 gpu", "5 gpu"}, "extended": {"4 gpu"}},
		"sharing": {"time-sliced": {"7 gpu"}, "mps-a": {"6 gpu"}, "mps-b": nil}, // which share a claim
		"mig":     {"one-parent": {"0 1g.10gb", "0 3g.40gb"}, "by-capacity": {"0 1g.20gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := compatibleCluster(t, offeredNode(t, "hgx-h100"))
			_, got := c.allocateAll(t, compatibleManifest(t, name), checkParameters)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
		})
	}
}

func checkParameters(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range claim.Spec.Devices.Config {
		if p, err := parameters.Decode(c.Opaque.Driver, c.Opaque.Parameters.Raw); err != nil || !p.Exclusive() {
			t.Errorf("claim %s: got %+v, %v", claim.Name, p, err)
		}
	}
}

// Each name and spelling that NVIDIA documents can be selected by.
func TestCompatible_Attributes(t *testing.T) {
	const attribute, amount = "device.attributes['gpu.nvidia.com'].", "device.capacity['gpu.nvidia.com']."
	const standard = "device.attributes['resource.kubernetes.io']."
	inventory := offeredNode(t, "hgx-h100")
	first := &inventory.GPUs[0]
	both := []string{"gpu.nvidia.com", "mig.nvidia.com"}
	for expression, classes := range map[string][]string{
		"device.driver == 'gpu.nvidia.com'":                                                both,
		attribute + "type in ['gpu', 'mig']":                                               both,
		attribute + "productName == 'NVIDIA H100 80GB HBM3'":                               both,
		attribute + "productName.lowerAscii().matches('^.*h100.*$')":                       both,
		attribute + "brand == 'Nvidia'":                                                    both,
		attribute + "architecture == 'Hopper'":                                             both,
		attribute + "driverVersion.compareTo(semver('570.0.0')) > 0":                       both,
		attribute + "cudaDriverVersion.isGreaterThan(semver('12.0.0'))":                    both,
		attribute + "cudaComputeCapability == semver('9.0.0')":                             both,
		attribute + "addressingMode in ['HMM', 'ATS', 'None']":                             both,
		attribute + "uuid == '" + first.UUID + "'":                                         both[:1],
		attribute + "parentUUID == '" + first.UUID + "'":                                   both[1:],
		attribute + "profile == '1g.10gb'":                                                 both[1:],
		attribute + "profile.startsWith('3g.')":                                            both[1:],
		standard + "pciBusID == '" + first.PCI.String() + "'":                              both,
		standard + "pcieRoot == '" + first.PCIeRoot() + "'":                                both,
		standard + fmt.Sprintf("numaNode == %d", *first.NUMANode):                          both,
		amount + "memory.isGreaterThan(quantity('4Gi'))":                                   both,
		amount + "memory.compareTo(quantity('81559Mi')) == 0":                              both[:1],
		amount + "memory.compareTo(quantity('9984Mi')) == 0":                               both[1:],
		amount + "multiprocessors.isGreaterThan(quantity('10'))":                           both,
		amount + "copyEngines.isGreaterThan(quantity('0'))":                                both,
		amount + "decoders.isGreaterThan(quantity('0'))":                                   both,
		amount + "encoders.compareTo(quantity('0')) == 0":                                  both,
		amount + "jpegEngines.isGreaterThan(quantity('0'))":                                both,
		amount + "ofaEngines.compareTo(quantity('1')) <= 0":                                both,
		amount + "?memorySlice0.hasValue() && " + attribute + "profile == '4g.40gb'":       both[1:],
		"!" + amount + "?memorySlice0.hasValue() && " + attribute + "profile == '1g.10gb'": both[1:],
	} {
		for _, class := range both {
			if !slices.Contains(classes, class) {
				continue
			}
			c := compatibleCluster(t, inventory)
			claim := newClaimOf("c", workload.ClaimSpec(class, 1, expression))
			checkExpressions(t, claim)
			devices, _, err := c.try(claim)
			if err != nil || len(devices) != 1 {
				t.Errorf("class %s, %s: got %v, %v", class, expression, devices, err)
			}
		}
	}
}
