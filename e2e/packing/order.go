// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// nodeName is the node of all replays.
const nodeName = "node-1"

// Order is a way to publish the devices of a node: the same devices, counters and classes, in another order.
type Order func(*policy.Node) []*resourceapi.ResourceSlice

// Cleave is the order that Cleave publishes.
func Cleave(node *policy.Node) []*resourceapi.ResourceSlice { return publishedBy(node, v1alpha1.Group) }

// Compatible is the same in NVIDIA-compatible mode.
func Compatible(node *policy.Node) []*resourceapi.ResourceSlice {
	return publishedBy(node, nvidia.DriverName)
}

func publishedBy(node *policy.Node, driver string) []*resourceapi.ResourceSlice {
	var published []*resourceapi.ResourceSlice
	list := nodeslices.Objects(node, driver, nodeName)
	for i := range list.Items {
		published = append(published, &list.Items[i])
	}
	return published
}

// Peer is the order of NVIDIA's DRA driver with dynamic MIG: the counter sets, then one slice per GPU by PCI address
// that holds the whole GPU and its partitions, sorted by the names that NVIDIA gives them
// (dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/mig.go, ToCanonicalName).
func Peer(node *policy.Node) []*resourceapi.ResourceSlice {
	devices := map[string]resourceapi.Device{}
	var published []*resourceapi.ResourceSlice
	all := Cleave(node)
	for _, s := range all {
		if len(s.Spec.SharedCounters) > 0 {
			published = append(published, s)
		}
		for _, d := range s.Spec.Devices {
			devices[d.Name] = d
		}
	}
	for i := range node.GPUs {
		shapes := node.Shapes(&node.GPUs[i])
		slices.SortFunc(shapes, func(a, b gpu.Shape) int { return strings.Compare(peerName(a), peerName(b)) })
		s := all[0].DeepCopy()
		s.Spec.SharedCounters, s.Spec.Devices = nil, nil
		for _, shape := range shapes {
			s.Spec.Devices = append(s.Spec.Devices, devices[shape.Name()])
		}
		published = append(published, s)
	}
	for i, s := range published {
		s.Name = fmt.Sprintf("%05x-%s-%s", i, s.Spec.Driver, nodeName)
		s.Spec.Pool.ResourceSliceCount = int64(len(published))
	}
	return published
}

// peerName is NVIDIA's name of a shape, such as "gpu-0-mig-1g10gb-me-20-3".
func peerName(s gpu.Shape) string {
	if !s.IsPartition() {
		// NVIDIA's driver has no shared devices alongside partitions. If it had, nothing but the order of GPUs would matter:
		// a DeviceClass selects one kind.
		return strings.TrimSuffix(fmt.Sprintf("gpu-%d-%s", s.GPU.Minor, s.Share), "-")
	}
	profile := strings.NewReplacer(".", "", "+", "-").Replace(s.Profile.Name)
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", s.GPU.Minor, profile, s.Profile.ID, s.Placement.Start)
}
