// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

func ptr[T any](v T) *T { return &v }

// modelNode is what discovery finds on a simulated node, GPUs found in MIG mode where mig says so.
func modelNode(t *testing.T, model string, mig ...int) *policy.Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	node := session.Node()
	for _, i := range mig {
		node.GPUs[i].MIG.Enabled, node.GPUs[i].MIG.Pending = true, true
	}
	return &policy.Node{Node: node}
}

// bigGPU reports everything, but no partitions.
func bigGPU(i int) gpu.GPU {
	numa := i / 4
	return gpu.GPU{
		PCI: gpu.PCIAddress{Bus: uint8(0x18 + i*0x10)}, UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i), Index: 7 - i, Minor: i,
		ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper", ComputeCapability: &gpu.Version{Major: 9},
		Memory: ptr(uint64(85_520_809_984)), ECC: ptr(true), AddressingMode: "HMM",
		NVLinks:  &gpu.NVLinks{Active: 18, Version: gpu.Version{Major: 4}, MBps: 478116, Switched: true},
		Fabric:   &gpu.Fabric{ClusterUUID: "6fbb1de4-2f8a-4d3c-9d2f-7c14a1f0c2e5", CliqueID: 3},
		NUMANode: &numa, CPUAffinity: fmt.Sprintf("%d-%d", 56*numa, 56*numa+55),
		PCIePath: []string{fmt.Sprintf("pci0000:%02x", 0x15+i*0x10), "0000:15:01.0", "0000:16:00.0", "0000:17:03.0", "0000:18:00.0"},
		MIG:      gpu.MIG{Capable: true, Slices: 8},
	}
}

// nodeOf is a node of so many GPUs that report everything.
func nodeOf(gpus int) *policy.Node {
	node := &policy.Node{Node: &gpu.Node{DriverVersion: "580.95.05", CUDAVersion: gpu.Version{Major: 13}}}
	for i := range gpus {
		g := bigGPU(i)
		g.PCI = gpu.PCIAddress{Domain: uint32(i / 256), Bus: uint8(i)}
		if gpus <= 8 {
			g.PCI = bigGPU(i).PCI
		}
		node.GPUs = append(node.GPUs, g)
	}
	return node
}

// bareGPU reports nothing but what it is known by.
func bareGPU() gpu.GPU {
	return gpu.GPU{PCI: gpu.PCIAddress{Bus: 3}, UUID: "GPU-bare"}
}

// slicesOf are the slices of the pool of node "n".
func slicesOf(t *testing.T, node *policy.Node) []Slice {
	t.Helper()
	return Of(node, View{})
}

func deviceOf(t *testing.T, node *policy.Node) resourceapi.Device {
	t.Helper()
	var devices []resourceapi.Device
	for _, s := range slicesOf(t, node) {
		devices = append(devices, s.Devices...)
	}
	if len(devices) != 1 {
		t.Fatalf("got %d devices, want 1", len(devices))
	}
	return devices[0]
}

func encode(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkGolden compares a value, as YAML, with a file in testdata.
func checkGolden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", name), string(got))
}
