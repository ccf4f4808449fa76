// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ShareConfigKind is the kind of opaque parameters for shared GPUs.
const ShareConfigKind = "ShareConfig"

// ShareConfig are a claim's wishes for shares of GPUs. What the claim was allocated is default and ceiling: parameters
// may lower it, never raise it.
type ShareConfig struct {
	metav1.TypeMeta `json:",inline"`
	// TimeSlice is for devices of type timeslice.
	TimeSlice *TimeSliceConfig `json:"timeSlice,omitempty"`
	// MPS is for devices of type mps.
	MPS *MPSConfig `json:"mps,omitempty"`
}

// TimeSliceConfig is for shares in time.
type TimeSliceConfig struct {
	// Interval is how long one process runs before the next has its turn. It holds for the whole GPU: claims that
	// share one and ask for different intervals exclude each other. Empty: whatever it is.
	Interval Interval `json:"interval,omitempty"`
}

// Interval is a length of time slices; the driver does not say what they are in milliseconds.
type Interval string

// The intervals that the driver knows (nvidia-smi compute-policy --set-timeslice).
const (
	IntervalDefault Interval = "Default"
	IntervalShort   Interval = "Short"
	IntervalMedium  Interval = "Medium"
	IntervalLong    Interval = "Long"
)

// Intervals lists them.
func Intervals() []Interval {
	return []Interval{IntervalDefault, IntervalShort, IntervalMedium, IntervalLong}
}

// MPSConfig is for shares of an MPS server.
type MPSConfig struct {
	// ActiveThreadPercentage of the GPU's multiprocessors, 1 to 100 (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE).
	ActiveThreadPercentage *int32 `json:"activeThreadPercentage,omitempty"`
	// PinnedDeviceMemoryLimit of each process, 1Mi and up (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT).
	PinnedDeviceMemoryLimit *resource.Quantity `json:"pinnedDeviceMemoryLimit,omitempty"`
	// Priority against the other clients of the GPU (CUDA_MPS_CLIENT_PRIORITY).
	Priority Priority `json:"priority,omitempty"`
}

// Priority of a client of an MPS server.
type Priority string

// The priorities that MPS knows.
const (
	PriorityNormal      Priority = "Normal"
	PriorityBelowNormal Priority = "BelowNormal"
)

// Priorities lists them.
func Priorities() []Priority { return []Priority{PriorityNormal, PriorityBelowNormal} }

// DecodeParameters reads opaque parameters and checks them; the error names what is wrong.
func DecodeParameters(raw []byte) (*ShareConfig, error) {
	c := &ShareConfig{}
	if err := DecodeStrictly(raw, APIVersion, ShareConfigKind, c, c.validate); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	if c.TimeSlice == nil && c.MPS == nil {
		return nil, errors.New("parameters: set timeSlice or mps, or remove the opaque configuration")
	}
	return c, nil
}

func (c *ShareConfig) validate() field.ErrorList {
	var errs field.ErrorList
	if t := c.TimeSlice; t != nil {
		if t.Interval != "" {
			errs = append(errs, oneOf(field.NewPath("timeSlice", "interval"), t.Interval, Intervals())...)
		}
	}
	if m := c.MPS; m != nil {
		path := field.NewPath("mps")
		if p := m.ActiveThreadPercentage; p != nil && (*p < 1 || *p > 100) {
			errs = append(errs, field.Invalid(path.Child("activeThreadPercentage"), *p, "must be 1 to 100"))
		}
		errs = append(errs, CheckMemory(path.Child("pinnedDeviceMemoryLimit"), m.PinnedDeviceMemoryLimit)...)
		if m.Priority != "" {
			errs = append(errs, oneOf(path.Child("priority"), m.Priority, Priorities())...)
		}
	}
	return errs
}
