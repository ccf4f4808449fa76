// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Owns reports whether parameters given to a driver of that name are NVIDIA's. NVIDIA's group was named as its driver in earlier
// releases. In compatible mode, parameters of an unknown group are assumed to be NVIDIA's, and rejected.
func Owns(driver string, raw []byte) bool {
	var meta metav1.TypeMeta
	err := json.UnmarshalCaseSensitivePreserveInts(raw, &meta)
	group, _, _ := strings.Cut(meta.APIVersion, "/")
	return err == nil && (group == Group || group == DriverName || driver == DriverName && group != v1alpha1.Group)
}

// DecodeParameters decodes and validates parameters for a driver of that name; errors name the field, and replacements for
// unsupported parameters.
func DecodeParameters(driver string, raw []byte) (*Config, error) {
	var meta metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		return nil, fmt.Errorf("parameters: want a JSON object with apiVersion and kind: %w", err)
	}
	if driver != DriverName {
		return nil, fmt.Errorf("parameters: kind %q of %q is NVIDIA's, which only a driver named %s understands "+
			"(NVIDIA-compatible mode, --driver-name=%s): use kind %s of %s, with a device of type timeslice or mps",
			meta.Kind, meta.APIVersion, DriverName, DriverName, v1alpha1.ShareConfigKind, v1alpha1.APIVersion)
	}
	return decode(raw, meta)
}

// instead names replacements for unsupported kinds.
var instead = map[string]string{
	"VfioDeviceConfig": "Cleave does not pass GPUs through to virtual machines: leave the nodes that do to another driver",
	"VgpuConfig":       "Cleave has no vGPUs: use a MIG partition, or a device of type timeslice or mps",
	"ComputeDomainChannelConfig": "channels are of the driver compute-domain.nvidia.com, which can run alongside Cleave: " +
		"name that driver in the claim, and ask for the channel by a request of its DeviceClass",
	"ComputeDomainDaemonConfig": "it is for claims that the driver compute-domain.nvidia.com makes for itself: name that driver in the claim",
}

// decode decodes parameters of the group in their type metadata.
func decode(raw []byte, meta metav1.TypeMeta) (*Config, error) {
	if why, ok := instead[meta.Kind]; ok {
		return nil, fmt.Errorf("parameters: kind %s cannot be honoured: %s", meta.Kind, why)
	}
	kind := GPUConfigKind
	switch {
	case meta.Kind == MIGDeviceConfigKind:
		kind = MIGDeviceConfigKind
	case meta.Kind != GPUConfigKind && meta.Kind != "":
		return nil, fmt.Errorf("parameters: unknown kind %q in %q: want %s or %s", meta.Kind, meta.APIVersion, GPUConfigKind, MIGDeviceConfigKind)
	}
	c := &Config{}
	if err := v1alpha1.DecodeStrictly(raw, APIVersion, kind, c, c.validate); err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	return c, nil
}

func (c *Config) validate() field.ErrorList {
	s, path := c.Sharing, field.NewPath("sharing")
	if s == nil {
		return nil
	}
	if !slices.Contains(Strategies(), s.Strategy) {
		return field.ErrorList{field.NotSupported(path.Child("strategy"), s.Strategy, Strategies())}
	}
	var errs field.ErrorList
	for _, part := range []struct {
		name string
		set  bool
		of   Strategy
	}{{"timeSlicingConfig", s.TimeSlicing != nil, StrategyTimeSlicing}, {"mpsConfig", s.MPS != nil, StrategyMPS}} {
		if part.set && s.Strategy != part.of {
			errs = append(errs, field.Forbidden(path.Child(part.name),
				fmt.Sprintf("it is for strategy %s, and the strategy is %s: remove one of them", part.of, s.Strategy)))
		}
	}
	if t := s.TimeSlicing; t != nil && t.Interval != "" && !slices.Contains(v1alpha1.Intervals(), t.Interval) {
		errs = append(errs, field.NotSupported(path.Child("timeSlicingConfig", "interval"), t.Interval, v1alpha1.Intervals()))
	}
	errs = append(errs, s.MPS.validate(path.Child("mpsConfig"))...)
	if c.Kind == MIGDeviceConfigKind && len(errs) == 0 {
		errs = c.validatePartition(path)
	}
	return errs
}

// validatePartition rejects settings that a partition cannot have.
func (c *Config) validatePartition(path *field.Path) field.ErrorList {
	if c.UsesMPS() && c.Sharing.MPS != nil {
		at := path.Child("mpsConfig", "defaultPerDevicePinnedMemoryLimit")
		for _, key := range slices.Sorted(maps.Keys(c.Sharing.MPS.PerDevicePinnedMemoryLimit)) {
			if key != "0" {
				return field.ErrorList{field.Invalid(at, key, "must be 0: the MPS server of a partition has that partition alone, whose UUID is not "+
					"known before it is created")}
			}
		}
	}
	if c.Interval() != v1alpha1.IntervalDefault {
		return field.ErrorList{field.Forbidden(path.Child("timeSlicingConfig", "interval"),
			"a GPU has one interval for all of its partitions, so none can have its own: remove it, or use a whole GPU (kind GpuConfig) or a "+
				"device of type timeslice")}
	}
	return nil
}

// deviceKey is the syntax of device keys: the number, or the UUID of a whole GPU.
var deviceKey = regexp.MustCompile(`^(0|[1-9][0-9]{0,3}|GPU-[0-9A-Za-z-]{1,60})$`)

func (m *MPS) validate(path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if p := m.ActiveThreadPercentage; p != nil && (*p < 0 || *p > 100) {
		errs = append(errs, field.Invalid(path.Child("defaultActiveThreadPercentage"), *p, "must be 0 to 100; 0 is the same as none, for all"))
	}
	errs = append(errs, v1alpha1.CheckMemory(path.Child("defaultPinnedDeviceMemoryLimit"), m.PinnedDeviceMemoryLimit)...)
	at := path.Child("defaultPerDevicePinnedMemoryLimit")
	for _, key := range slices.Sorted(maps.Keys(m.PerDevicePinnedMemoryLimit)) {
		if !deviceKey.MatchString(key) {
			errs = append(errs, field.Invalid(at, key, "must be the number of a device, counted from 0, or the UUID of a GPU"))
			continue
		}
		limit := m.PerDevicePinnedMemoryLimit[key]
		errs = append(errs, v1alpha1.CheckMemory(at.Key(key), &limit)...)
	}
	return errs
}
