// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// What NVIDIA's driver publishes of every whole GPU and of every partition that reports everything: names and types
// (dra-driver-nvidia-gpu, "ResourceSlice device attributes").
var (
	nvidiaAttributes = map[resourceapi.QualifiedName]string{
		"type": "string", "productName": "string", "brand": "string", "architecture": "string", "addressingMode": "string",
		"cudaComputeCapability": "version", "cudaDriverVersion": "version", "driverVersion": "version",
		"resource.kubernetes.io/pciBusID": "string", "resource.kubernetes.io/pcieRoot": "string", "resource.kubernetes.io/numaNode": "int",
	}
	nvidiaOfGPU       = map[resourceapi.QualifiedName]string{"uuid": "string"}
	nvidiaOfPartition = map[resourceapi.QualifiedName]string{"parentUUID": "string", "profile": "string"}
	nvidiaCapacities  = []resourceapi.QualifiedName{"memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines"}
)

// full makes a GPU report everything that one can.
func full(g *gpu.GPU) {
	g.Brand, g.AddressingMode, g.ECC = "Nvidia", "HMM", ptr(true)
	g.NUMANode, g.CPUAffinity = ptr(1), "0-55,112-167"
	g.PCIePath = []string{"pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:03.0", g.PCI.String()}
	g.NVLinks = &gpu.NVLinks{Active: 18, Version: gpu.Version{Major: 4}, MBps: 478_000, Switched: true}
	g.Fabric = &gpu.Fabric{ClusterUUID: "5e1d0a7a-0002-4a8e-9a57-6b1b0a7a5a02", CliqueID: 3}
}

// shared is the offer of a GPU that is shared in every way.
func shared(g *gpu.GPU) policy.Offer {
	offer := policy.Offer{
		Whole: true, TimeSlice: &policy.Sharing{Shares: 4, Memory: policy.NewCut(20<<30, 4, 1<<30, 1<<30)},
		MPS: &policy.Sharing{Shares: 10, Memory: policy.NewCut(20<<30, 10, 1<<30, 1<<30), Cores: policy.NewCut(100, 10, 1, 1)},
	}
	if g.MIG.Capable {
		offer.Partitions = &policy.PartitionOffer{Mode: policy.OnDemand}
	}
	return offer
}

// compatibleDevices are those of a node in compatible mode; its partitions, if they exist already, have a UUID.
func compatibleDevices(t *testing.T, node *policy.Node, existing bool) []resourceapi.Device {
	t.Helper()
	r := Of(node, View{Compatible: true})
	var all []resourceapi.Device
	for _, s := range r {
		for _, d := range s.Devices {
			if existing && *d.Attributes["type"].StringValue == string(gpu.TypeMIG) {
				NameExisting(r, d.Name, "MIG-00000000-0000-0000-0000-000000000000")
			}
		}
		all = append(all, s.Devices...)
	}
	checkLimits(t, r)
	return all
}

func typeOf(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return "string"
	case a.IntValue != nil:
		return "int"
	case a.VersionValue != nil:
		return "version"
	default:
		return "something else"
	}
}

// Nothing that NVIDIA's driver publishes may be missing, and the limit of 32 attributes and capacities holds, on every model
// of a node, even where everything is reported.
func TestCompatible_Attributes(t *testing.T) {
	slice := regexp.MustCompile(`^memorySlice\d+$`)
	for _, model := range simulated.NodeModels() {
		for _, mig := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s MIG %t", model, mig), func(t *testing.T) {
				node := modelNode(t, model)
				node.GPUs = node.GPUs[:1]
				g := &node.GPUs[0]
				full(g)
				node.Offers = append(node.Offers, shared(g))
				g.MIG.Enabled = mig && g.MIG.Capable
				kinds := map[string]bool{}
				for _, d := range compatibleDevices(t, node, true) {
					kind := *d.Attributes["type"].StringValue
					kinds[kind] = true
					want := []map[resourceapi.QualifiedName]string{nvidiaAttributes}
					var amounts []resourceapi.QualifiedName
					switch kind {
					case string(gpu.TypeGPU):
						want, amounts = append(want, nvidiaOfGPU), nvidiaCapacities[:1]
						if len(g.MIG.Profiles) > 0 {
							amounts = nvidiaCapacities
						}
					case string(gpu.TypeMIG):
						want, amounts = append(want, nvidiaOfPartition), nvidiaCapacities
						shape, _ := node.FindShape(d.Name)
						slices := 0
						for name := range d.Capacity {
							if slice.MatchString(string(name)) {
								slices++
							}
						}
						if size := shape.Placement.Size; slices != size && size != g.MIG.Slices {
							t.Errorf("%s has %d memory slices, want %d", d.Name, slices, size)
						}
					}
					for _, names := range want {
						for name, kind := range names {
							if a, ok := d.Attributes[name]; !ok || typeOf(a) != kind {
								t.Errorf("%s: attribute %s is %s, want %s", d.Name, name, typeOf(a), kind)
							}
						}
					}
					for _, name := range amounts {
						if _, ok := d.Capacity[name]; !ok {
							t.Errorf("%s has no capacity %s", d.Name, name)
						}
					}
				}
				if wholes := !g.MIG.Enabled || !g.MIG.NeedsReset; kinds[string(gpu.TypeGPU)] != wholes {
					t.Errorf("whole GPUs are published: %t, want %t", kinds[string(gpu.TypeGPU)], wholes)
				}
			})
		}
	}
}

func TestCompatible_Capacities(t *testing.T) {
	node := modelNode(t, "hgx-h100")
	node.GPUs = node.GPUs[:1]
	name := node.GPUs[0].PCI.DeviceName()
	want := map[string]map[string]string{
		name: {
			"memory": "81559Mi", "multiprocessors": "132", "copyEngines": "8", "decoders": "7", "encoders": "0", "jpegEngines": "7", "ofaEngines": "1",
		},
		name + "-mig-9-4": {
			"memory": "40448Mi", "multiprocessors": "60", "copyEngines": "3", "decoders": "3", "encoders": "0", "jpegEngines": "3", "ofaEngines": "0",
			"memorySlice4": "1", "memorySlice5": "1", "memorySlice6": "1", "memorySlice7": "1",
		},
	}
	got := map[string]map[string]string{}
	for _, d := range compatibleDevices(t, node, false) {
		if want[d.Name] == nil {
			continue
		}
		got[d.Name] = map[string]string{}
		for name, c := range d.Capacity {
			got[d.Name][string(name)] = c.Value.String()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("capacities (-want +got):\n%s", diff)
	}
}

// Where there is no room, nothing is left out that NVIDIA's driver has, and ours goes from the least on.
func TestCompatible_ExpendableAttributes(t *testing.T) {
	device := func(others int) *resourceapi.Device {
		d := &resourceapi.Device{Attributes: attributeSet{}}
		for i := range others {
			attributeSet(d.Attributes).number(resourceapi.QualifiedName(fmt.Sprintf("a%d", i)), &i)
		}
		for _, name := range expendable {
			attributeSet(d.Attributes).text(name, "x")
		}
		return d
	}
	for _, tt := range []struct{ others, more, left, added int }{
		{10, 4, 5, 4}, {23, 4, 5, 4}, {24, 4, 4, 4}, {27, 4, 1, 4}, {28, 4, 0, 4}, {29, 4, 5, 0}, {27, 0, 5, 0},
	} {
		d := device(tt.others)
		more := memorySlices(gpu.Placement{Size: tt.more})
		if add(d, more, 0); len(d.Attributes) != tt.others+tt.left || len(d.Capacity) != tt.added {
			t.Errorf("%d others and %d more: left are %d, added %d, want %d and %d", tt.others, tt.more, len(d.Attributes)-tt.others, len(d.Capacity), tt.left, tt.added)
		}
		for i, name := range expendable {
			if _, ok := d.Attributes[name]; ok != (i >= len(expendable)-tt.left) {
				t.Errorf("%d others and %d more: %s is there: %t", tt.others, tt.more, name, ok)
			}
		}
	}
}

func TestCompatible_DriverName(t *testing.T) {
	node := modelNode(t, "hgx-h100")
	for driver, want := range map[string]string{"gpu.cleave.dev": "81001Mi", "gpu.nvidia.com": "81559Mi"} {
		var got []string
		for _, s := range Objects(node, driver, "node-1").Items {
			for _, d := range s.Spec.Devices {
				if memory := d.Capacity["memory"]; *d.Attributes["type"].StringValue == string(gpu.TypeGPU) {
					got = append(got, memory.Value.String())
				}
			}
		}
		if got = slices.Compact(got); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: memory of whole GPUs %v, want %s", driver, got, want)
		}
	}
}
