// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Kinds of parameters.
const (
	// GPUConfigKind is for whole GPUs.
	GPUConfigKind = "GpuConfig"
	// MIGDeviceConfigKind is for MIG partitions.
	MIGDeviceConfigKind = "MigDeviceConfig"
)

// Config is a GpuConfig or a MigDeviceConfig, by its kind. It says how the containers of one claim share the claim's
// devices, of which no other claim has anything.
type Config struct {
	metav1.TypeMeta `json:",inline"`
	// Sharing is nil where the claim leaves it to the driver.
	Sharing *Sharing `json:"sharing,omitempty"`
}

// Sharing is how the processes of one claim share a device.
type Sharing struct {
	Strategy Strategy `json:"strategy"`
	// TimeSlicing is for strategy TimeSlicing.
	TimeSlicing *TimeSlicing `json:"timeSlicingConfig,omitempty"`
	// MPS is for strategy MPS.
	MPS *MPS `json:"mpsConfig,omitempty"`
}

// Strategy is a way to share a device.
type Strategy string

// The strategies.
const (
	StrategyTimeSlicing Strategy = "TimeSlicing"
	StrategyMPS         Strategy = "MPS"
)

// Strategies lists them.
func Strategies() []Strategy { return []Strategy{StrategyTimeSlicing, StrategyMPS} }

// TimeSlicing is how processes take turns.
type TimeSlicing struct {
	// Interval of the GPU's time slices while the claim has it; empty for Default.
	Interval v1alpha1.Interval `json:"interval,omitempty"`
}

// MPS is what an MPS server gives its clients.
type MPS struct {
	// ActiveThreadPercentage of the multiprocessors that each client has, 1 to 100; nil or 0 for all.
	ActiveThreadPercentage *int32 `json:"defaultActiveThreadPercentage,omitempty"`
	// PinnedDeviceMemoryLimit of each client, 1Mi and up; nil for none.
	PinnedDeviceMemoryLimit *resource.Quantity `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// PerDevicePinnedMemoryLimit is the same for single devices, by their number among those of the server, counted from
	// 0, or by UUID.
	PerDevicePinnedMemoryLimit map[string]resource.Quantity `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets clients of several users use the server, which they always may here.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// Interval that a claim asks for; Default where it does not say.
func (c *Config) Interval() v1alpha1.Interval {
	if c.Sharing == nil || c.Sharing.TimeSlicing == nil || c.Sharing.TimeSlicing.Interval == "" {
		return v1alpha1.IntervalDefault
	}
	return c.Sharing.TimeSlicing.Interval
}

// UsesMPS reports whether the claim's processes are to share its devices by MPS.
func (c *Config) UsesMPS() bool { return c.Sharing != nil && c.Sharing.Strategy == StrategyMPS }
