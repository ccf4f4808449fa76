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

// Parameters are decoded, checked, and the same whichever API they were written in.
type Parameters struct {
	// Kind of the object that they were written as, such as ShareConfig.
	Kind string
	// ExclusiveOf is the type of device, gpu or mig, that a claim has alone and whose use by its own processes the
	// parameters are about; empty where they are about shares of a GPU that others use, too.
	ExclusiveOf string
	// TimeSlice is for devices that processes share in time; never nil for an exclusive device without MPS.
	TimeSlice *v1alpha1.TimeSliceConfig
	// MPS is for clients of an MPS server.
	MPS *MPS
}

// MPS is what clients of an MPS server ask for.
type MPS struct {
	v1alpha1.MPSConfig
	// PerDevice are memory limits of each client on single devices, by their number among those of the server, counted from
	// 0, or by UUID.
	PerDevice map[string]resource.Quantity
}

// Exclusive reports whether the parameters are about a device that a claim has alone.
func (p *Parameters) Exclusive() bool { return p.ExclusiveOf != "" }

// exclusiveKinds are the kinds for devices that a claim has alone, by the type of device.
var exclusiveKinds = map[string]string{"gpu": nvidia.GPUConfigKind, "mig": nvidia.MIGDeviceConfigKind}

// ExclusiveKind is the kind of parameters for a type of device that a claim has alone; empty where there is none.
func ExclusiveKind(deviceType string) string { return exclusiveKinds[deviceType] }

// Decode reads what is given to a driver of that name; the error names what is wrong.
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
