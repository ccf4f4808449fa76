// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// board is a GPU of a model, the nth of its node.
func board(n uint8, model string, major, minor int, mib uint64) gpu.GPU {
	total := mib << 20
	return gpu.GPU{PCI: gpu.PCIAddress{Bus: n}, ProductName: model, TotalMemory: &total, ComputeCapability: &gpu.Version{Major: major, Minor: minor}}
}

func h100(n uint8) gpu.GPU {
	g := board(n, "NVIDIA H100 80GB HBM3", 9, 0, 81559)
	g.MIG.Capable = true
	return g
}

func inClique(g gpu.GPU, cluster string, id int) gpu.GPU {
	g.Fabric = &gpu.Fabric{ClusterUUID: cluster, CliqueID: id}
	return g
}

func nodeOf(driver string, gpus ...gpu.GPU) *policy.Node {
	return &policy.Node{Node: &gpu.Node{DriverVersion: driver, CUDAVersion: gpu.Version{Major: 13}, GPUs: gpus}}
}

func TestOf(t *testing.T) {
	const cluster = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
	whole := nodeOf("580.95.05", h100(1), h100(2))
	whole.Offers = []policy.Offer{{Whole: true}, {Whole: true}}
	short := nodeOf("580.95", board(1, "Tesla T4", 7, 5, 15360))
	for name, tt := range map[string]struct {
		node *policy.Node
		want string
	}{
		"nil":     {nil, ""},
		"no GPUs": {nodeOf("580.95.05"), ""},
		"partitions offered": {nodeOf("580.95.05", h100(1), h100(2)), "cuda.driver-version.full=580.95.05 cuda.driver-version.major=580 " +
			"cuda.driver-version.minor=95 cuda.driver-version.revision=05 cuda.runtime-version.full=13.0 cuda.runtime-version.major=13 " +
			"cuda.runtime-version.minor=0 gpu.compute.major=9 gpu.compute.minor=0 gpu.count=2 gpu.family=hopper gpu.memory=81559 " +
			"gpu.product=NVIDIA-H100-80GB-HBM3 mig.capable=true mig.strategy=mixed"},
		"whole GPUs alone": {whole, "cuda.driver-version.full=580.95.05 cuda.driver-version.major=580 " +
			"cuda.driver-version.minor=95 cuda.driver-version.revision=05 cuda.runtime-version.full=13.0 cuda.runtime-version.major=13 " +
			"cuda.runtime-version.minor=0 gpu.compute.major=9 gpu.compute.minor=0 gpu.count=2 gpu.family=hopper gpu.memory=81559 " +
			"gpu.product=NVIDIA-H100-80GB-HBM3 mig.capable=true"},
		"a driver without a revision, and no MIG": {short, "cuda.driver-version.full=580.95 cuda.driver-version.major=580 " +
			"cuda.driver-version.minor=95 cuda.driver-version.revision= cuda.runtime-version.full=13.0 cuda.runtime-version.major=13 " +
			"cuda.runtime-version.minor=0 gpu.compute.major=7 gpu.compute.minor=5 gpu.count=1 gpu.family=turing gpu.memory=15360 " +
			"gpu.product=Tesla-T4 mig.capable=false"},
		"a clique": {nodeOf("x", inClique(h100(1), cluster, 1), inClique(h100(2), cluster, 1), h100(3)), "cuda.runtime-version.full=13.0 " +
			"cuda.runtime-version.major=13 cuda.runtime-version.minor=0 gpu.clique=" + cluster + ".1 gpu.compute.major=9 gpu.compute.minor=0 " +
			"gpu.count=3 gpu.family=hopper gpu.memory=81559 gpu.product=NVIDIA-H100-80GB-HBM3 mig.capable=true mig.strategy=mixed"},
		"two cliques": {nodeOf("x", inClique(h100(1), cluster, 1), inClique(h100(2), cluster, 2)), "cuda.runtime-version.full=13.0 " +
			"cuda.runtime-version.major=13 cuda.runtime-version.minor=0 gpu.compute.major=9 gpu.compute.minor=0 " +
			"gpu.count=2 gpu.family=hopper gpu.memory=81559 gpu.product=NVIDIA-H100-80GB-HBM3 mig.capable=true mig.strategy=mixed"},
		"the most frequent model": {nodeOf("x", board(1, "NVIDIA L4", 8, 9, 23034), h100(2), h100(3)), "cuda.runtime-version.full=13.0 " +
			"cuda.runtime-version.major=13 cuda.runtime-version.minor=0 gpu.compute.major=9 gpu.compute.minor=0 " +
			"gpu.count=2 gpu.family=hopper gpu.memory=81559 gpu.product=NVIDIA-H100-80GB-HBM3 mig.capable=true mig.strategy=mixed"},
		"unknown facts": {&policy.Node{Node: &gpu.Node{GPUs: []gpu.GPU{{}}}}, "gpu.count=1 mig.capable=false"},
		"a name that is no label": {nodeOf("x", board(1, "NVIDIA (R)  RTX™ PRO/6000", 12, 0, 97887)), "cuda.runtime-version.full=13.0 " +
			"cuda.runtime-version.major=13 cuda.runtime-version.minor=0 gpu.compute.major=12 gpu.compute.minor=0 gpu.count=1 gpu.family=blackwell " +
			"gpu.memory=97887 gpu.product=NVIDIA-R-RTX-PRO6000 mig.capable=false"},
		"a name that is too long": {nodeOf("x", board(1, strings.Repeat("long ", 20), 11, 0, 1)), "cuda.runtime-version.full=13.0 " +
			"cuda.runtime-version.major=13 cuda.runtime-version.minor=0 gpu.compute.major=11 gpu.compute.minor=0 gpu.count=1 gpu.family=undefined " +
			"gpu.memory=1 mig.capable=false"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			labels := Of(tt.node)
			for _, key := range slices.Sorted(maps.Keys(labels)) {
				got = append(got, strings.TrimPrefix(key, "nvidia.com/")+"="+labels[key])
				if !slices.Contains(Keys(), key) {
					t.Errorf("%s is not in Keys", key)
				}
				if errs := validation.IsValidLabelValue(labels[key]); len(errs) > 0 {
					t.Errorf("%s=%s is no label: %v", key, labels[key], errs)
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}
