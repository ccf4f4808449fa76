// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// The labels. Those that feature discovery has deprecated (cuda.driver.*, cuda.runtime.*) are left out, and so are those about the
// device plugin's configuration (gpu.replicas, gpu.sharing-strategy, mps.capable).
const (
	driverMajor    = "nvidia.com/cuda.driver-version.major"
	driverMinor    = "nvidia.com/cuda.driver-version.minor"
	driverRevision = "nvidia.com/cuda.driver-version.revision"
	driverFull     = "nvidia.com/cuda.driver-version.full"
	cudaMajor      = "nvidia.com/cuda.runtime-version.major"
	cudaMinor      = "nvidia.com/cuda.runtime-version.minor"
	cudaFull       = "nvidia.com/cuda.runtime-version.full"
	product        = "nvidia.com/gpu.product"
	count          = "nvidia.com/gpu.count"
	memory         = "nvidia.com/gpu.memory"
	family         = "nvidia.com/gpu.family"
	computeMajor   = "nvidia.com/gpu.compute.major"
	computeMinor   = "nvidia.com/gpu.compute.minor"
	clique         = "nvidia.com/gpu.clique"
	migCapable     = "nvidia.com/mig.capable"
	migStrategy    = "nvidia.com/mig.strategy"
)

// Keys are all labels, sorted.
func Keys() []string {
	keys := []string{driverMajor, driverMinor, driverRevision, driverFull, cudaMajor, cudaMinor, cudaFull, product, count, memory,
		family, computeMajor, computeMinor, clique, migCapable, migStrategy}
	slices.Sort(keys)
	return keys
}

// Of are the labels of a node; none without GPUs. Facts that a board does not report have no label. On a node with several models,
// those of a GPU are about the most frequent one; of equally frequent ones, the first.
func Of(node *policy.Node) map[string]string {
	labels := map[string]string{}
	if node == nil || node.Node == nil || len(node.GPUs) == 0 {
		return labels
	}
	versions(labels, node.Node)
	model, n := mostFrequent(node.GPUs)
	labels[product] = sanitise(model.ProductName)
	labels[count] = strconv.Itoa(n)
	if m := model.TotalMemory; m != nil && *m > 0 {
		labels[memory] = strconv.FormatUint(*m>>20, 10)
	}
	if c := model.ComputeCapability; c != nil && c.Major > 0 {
		labels[family] = familyOf(*c)
		labels[computeMajor], labels[computeMinor] = strconv.Itoa(c.Major), strconv.Itoa(c.Minor)
	}
	labels[clique] = cliqueOf(node.GPUs)
	mig(labels, node)
	for key, value := range labels {
		if value == "" && key != driverRevision || len(validation.IsValidLabelValue(value)) > 0 {
			delete(labels, key) // the API server would reject all of them
		}
	}
	return labels
}

// versions sets those of the driver, whose revision may be missing, and of CUDA.
func versions(labels map[string]string, node *gpu.Node) {
	const most = 3
	parts := strings.Split(node.DriverVersion, ".")
	if len(parts) > 1 && len(parts) <= most {
		labels[driverFull], labels[driverMajor], labels[driverMinor] = node.DriverVersion, parts[0], parts[1]
		labels[driverRevision] = strings.Join(parts[2:], "")
	}
	if v := node.CUDAVersion; v != (gpu.Version{}) {
		labels[cudaFull], labels[cudaMajor], labels[cudaMinor] = v.String(), strconv.Itoa(v.Major), strconv.Itoa(v.Minor)
	}
}

// mostFrequent is the first GPU of the most frequent model, and the number of that model.
func mostFrequent(gpus []gpu.GPU) (model *gpu.GPU, n int) {
	counts := map[string]int{}
	for i := range gpus {
		counts[gpus[i].ProductName]++
	}
	for i := range gpus {
		if c := counts[gpus[i].ProductName]; c > n {
			model, n = &gpus[i], c
		}
	}
	return model, n
}

// notInProducts are the characters that feature discovery removes (internal/lm/resource.go, sanitise).
var notInProducts = regexp.MustCompile(`[^-A-Za-z0-9_. ]`)

func sanitise(name string) string {
	return strings.Join(strings.Fields(notInProducts.ReplaceAllString(name, "")), "-")
}

// familyOf names the architecture of a compute capability (internal/lm/resource.go, getArchFamily).
func familyOf(c gpu.Version) string {
	switch c.Major {
	case 5:
		return "maxwell"
	case 6:
		return "pascal"
	case 7:
		if c.Minor < 5 {
			return "volta"
		}
		return "turing"
	case 8:
		if c.Minor < 9 {
			return "ampere"
		}
		return "ada-lovelace"
	case 9:
		return "hopper"
	case 10, 12:
		return "blackwell"
	case 13:
		return "rubin"
	default:
		return "undefined"
	}
}

// cliqueOf is the NVLink domain of all GPUs that are in one of several nodes; empty if they are in several or none.
func cliqueOf(gpus []gpu.GPU) string {
	found := ""
	for i := range gpus {
		f := gpus[i].Fabric
		if f == nil {
			continue
		}
		switch id := f.ClusterUUID + "." + strconv.Itoa(f.CliqueID); found {
		case "", id:
			found = id
		default:
			return ""
		}
	}
	return found
}

// mig sets whether any GPU can be partitioned. The strategy is "mixed" where partitions are offered: each profile is a resource. Without
// partitions there is no strategy, as with feature discovery's "none".
func mig(labels map[string]string, node *policy.Node) {
	capable := slices.ContainsFunc(node.GPUs, func(g gpu.GPU) bool { return g.MIG.Capable })
	labels[migCapable] = strconv.FormatBool(capable)
	for i := range node.GPUs {
		if g := &node.GPUs[i]; g.MIG.Capable && node.Offer(g).Partitions != nil {
			labels[migStrategy] = "mixed"
		}
	}
}
