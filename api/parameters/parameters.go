// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Parameters are decoded and validated parameters, independent of their API.
type Parameters struct {
	// Kind of the original object, such as ShareConfig.
	Kind string
	// ExclusiveOf is the type of an exclusive device, gpu or mig, which the parameters share among the claim's own processes; empty
	// for shares of a GPU that other claims use, too.
	ExclusiveOf string
	// TimeSlice is for devices that processes share in time; never nil for an exclusive device without MPS.
	TimeSlice *v1alpha1.TimeSliceConfig
	// MPS is for clients of an MPS server.
	MPS *MPS
}

// MPS is the settings of clients of an MPS server.
type MPS struct {
	v1alpha1.MPSConfig
	// PerDevice are memory limits of each client by device: by its number among the server's devices, from 0, or by UUID.
	PerDevice map[string]resource.Quantity
}

// Exclusive reports whether the parameters are for an exclusive device.
func (p *Parameters) Exclusive() bool { return p.ExclusiveOf != "" }

// exclusiveKinds are the kinds for exclusive devices, by the type of device.
var exclusiveKinds = map[string]string{"gpu": nvidia.GPUConfigKind, "mig": nvidia.MIGDeviceConfigKind}

// ExclusiveKind is the kind of parameters for a type of exclusive device; empty for none.
func ExclusiveKind(deviceType string) string { return exclusiveKinds[deviceType] }

// Decode decodes parameters for a driver of that name; errors name the field.
func Decode(driver string, raw []byte) (*Parameters, error) {
	if !nvidia.Owns(driver, raw) {
		c, err := v1alpha1.DecodeParameters(raw)
		if err != nil {
			return nil, err
		}
		return ofShare(c), nil
	}
	c, err := nvidia.DecodeParameters(driver, raw)
	if err != nil {
		return nil, err
	}
	return ofNVIDIA(c), nil
}

func ofShare(c *v1alpha1.ShareConfig) *Parameters {
	p := &Parameters{Kind: c.Kind, TimeSlice: c.TimeSlice}
	if c.MPS != nil {
		p.MPS = &MPS{MPSConfig: *c.MPS}
	}
	return p
}

func ofNVIDIA(c *nvidia.Config) *Parameters {
	p := &Parameters{Kind: c.Kind, ExclusiveOf: "gpu"}
	if c.Kind == nvidia.MIGDeviceConfigKind {
		p.ExclusiveOf = "mig"
	}
	if !c.UsesMPS() {
		p.TimeSlice = &v1alpha1.TimeSliceConfig{Interval: c.Interval()}
		return p
	}
	p.MPS = &MPS{}
	if m := c.Sharing.MPS; m != nil {
		p.MPS.ActiveThreadPercentage, p.MPS.PinnedDeviceMemoryLimit = m.ActiveThreadPercentage, m.PinnedDeviceMemoryLimit
		p.MPS.PerDevice = m.PerDevicePinnedMemoryLimit
	}
	return p
}

// MemoryLimit of each client on a GPU or a partition of it, in bytes; 0 for none. A server has one of them, whose number is 0.
func (m *MPS) MemoryLimit(uuid string) (int64, error) {
	var limit int64
	if m.PinnedDeviceMemoryLimit != nil {
		limit = m.PinnedDeviceMemoryLimit.Value()
	}
	keys := slices.Sorted(maps.Keys(m.PerDevice))
	for _, key := range keys {
		if key != "0" && key != uuid {
			return 0, fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit names device %q, and the claim's MPS server has one, "+
				"number 0 with UUID %s: give each request with a GPU an opaque configuration of its own", key, uuid)
		}
		q := m.PerDevice[key]
		limit = q.Value()
	}
	if len(keys) > 1 {
		return 0, fmt.Errorf("sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit has the GPU twice, as %q and as %q: remove one", keys[0],
			keys[1])
	}
	return limit, nil
}
