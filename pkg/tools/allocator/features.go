// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Features returns what the scheduler of Kubernetes 1.37 enables by default.
func Features() structured.Features { return FeaturesOf(version.MajorMinor(1, 37)) }

// FeaturesOf returns what the scheduler of a release enables by default (k8s.io/kubernetes v1.37.2, pkg/features/kube_features.go, which
// has the defaults of earlier releases, too).
func FeaturesOf(release *version.Version) structured.Features {
	since := func(minor uint) bool { return release.AtLeast(version.MajorMinor(1, minor)) }
	return structured.Features{
		AdminAccess:             since(34),
		ConsumableCapacity:      since(36),
		DeviceBindingAndStatus:  since(36),
		DeviceTaints:            since(36),
		FractionalCapacityRange: since(37),
		PartitionableDevices:    since(36),
		PrioritizedList:         since(34),
	}
}
