// SPDX-License-Identifier: Apache-2.0

package main

import resourceapi "k8s.io/api/resource/v1"

// smallest is the profile of the claims that are allocated beforehand.
const smallest = "1g.10gb"

// nodeSlices are what one node publishes.
type nodeSlices []*resourceapi.ResourceSlice

// gpus counts the counter sets, which are one per GPU.
func (n nodeSlices) gpus() int {
	gpus := 0
	for _, s := range n {
		gpus += len(s.Spec.SharedCounters)
	}
	return gpus
}

// smallest are the devices of the smallest profile, in their order.
func (n nodeSlices) smallest() (devices []string) {
	for _, s := range n {
		for _, d := range s.Spec.Devices {
			if p := d.Attributes["profile"].StringValue; p != nil && *p == smallest {
				devices = append(devices, d.Name)
			}
		}
	}
	return devices
}

// whole are the devices that are a whole GPU, in their order.
func (n nodeSlices) whole() (devices []string) {
	for _, s := range n {
		for _, d := range s.Spec.Devices {
			if t := d.Attributes["type"].StringValue; t != nil && *t == "gpu" {
				devices = append(devices, d.Name)
			}
		}
	}
	return devices
}
