// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// pluginFlags are the plugin's flags (api/config/v1/flags.go). Those of which nothing is taken over but a note are of type
// any where the plugin takes several types.
type pluginFlags struct {
	MigStrategy             *string          `json:"migStrategy"`
	FailOnInitError         *bool            `json:"failOnInitError"`
	MpsRoot                 *string          `json:"mpsRoot"`
	NvidiaDriverRoot        *string          `json:"nvidiaDriverRoot"`
	NvidiaDevRoot           *string          `json:"nvidiaDevRoot"`
	GDRCopyEnabled          *bool            `json:"gdrcopyEnabled"`
	GDSEnabled              *bool            `json:"gdsEnabled"`
	MOFEDEnabled            *bool            `json:"mofedEnabled"`
	UseNodeFeatureAPI       *bool            `json:"useNodeFeatureAPI"`
	DeviceDiscoveryStrategy *string          `json:"deviceDiscoveryStrategy"`
	Plugin                  pluginOwnFlags   `json:"plugin"`
	GFD                     featureDiscovery `json:"gfd"`
}

type pluginOwnFlags struct {
	PassDeviceSpecs               *bool   `json:"passDeviceSpecs"`
	DeviceListStrategy            any     `json:"deviceListStrategy"`
	DeviceIDStrategy              *string `json:"deviceIDStrategy"`
	CDIAnnotationPrefix           *string `json:"cdiAnnotationPrefix"`
	NvidiaCTKPath                 *string `json:"nvidiaCTKPath"`
	ContainerDriverRoot           *string `json:"containerDriverRoot"`
	KubeletSocket                 *string `json:"kubeletSocket"`
	CDIFeatureFlags               any     `json:"cdiFeatureFlags"`
	SharedDevicesAllocationPolicy *string `json:"sharedDevicesAllocationPolicy"`
}

type featureDiscovery struct {
	Oneshot         *bool   `json:"oneshot"`
	NoTimestamp     *bool   `json:"noTimestamp"`
	SleepInterval   any     `json:"sleepInterval"`
	OutputFile      *string `json:"outputFile"`
	MachineTypeFile *string `json:"machineTypeFile"`
}

func (f *pluginFlags) check(path *field.Path) field.ErrorList {
	known := []string{strategyNone, strategySingle, strategyMixed}
	if f.MigStrategy != nil && !slices.Contains(known, *f.MigStrategy) {
		return field.ErrorList{field.NotSupported(path.Child("migStrategy"), *f.MigStrategy, known)}
	}
	return nil
}

func (f *pluginFlags) strategy() string {
	if f.MigStrategy == nil {
		return strategyNone
	}
	return *f.MigStrategy
}

// noteFlags notes the flags that mean something to the plugin alone. A value that asks for what Cleave does, too, or for
// nothing, is passed over.
func (i *Import) noteFlags(f *pluginFlags) {
	const (
		cdi   = "containers get devices by CDI through the kubelet, always: nothing to set"
		gfd   = "is of gpu-feature-discovery, which can go on running"
		paths = "set the DRA driver's own flag: cleave-node kubelet-plugin "
	)
	for _, n := range []struct {
		field   string
		value   any
		same    any // the value that needs no note
		instead string
	}{
		{"failOnInitError", f.FailOnInitError, nil, "Cleave waits for the NVIDIA driver and says so in its log and at /readyz: nothing to set"},
		{"mpsRoot", f.MpsRoot, "", "the MPS supervisor keeps its files in /run/cleave/mps: cleave-node mps-supervisor --dir"},
		{"nvidiaDriverRoot", f.NvidiaDriverRoot, "/", paths + "--driver-root"},
		{"nvidiaDevRoot", f.NvidiaDevRoot, "/", "device nodes are looked for under the driver's root: " + paths + "--driver-root"},
		{"gdrcopyEnabled", f.GDRCopyEnabled, false,
			"no equivalent: pods that need /dev/gdrdrv mount it by a CDI device or a hostPath of their own"},
		{"gdsEnabled", f.GDSEnabled, false,
			"no equivalent: pods that need GPUDirect Storage mount /dev/nvidia-fs* by a CDI device or a hostPath of their own"},
		{"mofedEnabled", f.MOFEDEnabled, false, "no equivalent: claim the network card from a DRA driver of its own, or mount /dev/infiniband"},
		{"useNodeFeatureAPI", f.UseNodeFeatureAPI, false, gfd},
		{"deviceDiscoveryStrategy", f.DeviceDiscoveryStrategy, "auto", "Cleave finds GPUs by NVML; it has no support for Tegra and WSL"},
		{"plugin.passDeviceSpecs", f.Plugin.PassDeviceSpecs, false, cdi},
		{"plugin.deviceListStrategy", f.Plugin.DeviceListStrategy, "cdi-cri", cdi},
		{"plugin.deviceIDStrategy", f.Plugin.DeviceIDStrategy, "uuid",
			"GPUs are named by PCI address and checked by UUID, never by index: nothing to set"},
		{"plugin.cdiAnnotationPrefix", f.Plugin.CDIAnnotationPrefix, "", cdi},
		{"plugin.nvidiaCTKPath", f.Plugin.NvidiaCTKPath, "", "Cleave brings its own hook program: nothing to set"},
		{"plugin.containerDriverRoot", f.Plugin.ContainerDriverRoot, "", paths + "--container-driver-root"},
		{"plugin.kubeletSocket", f.Plugin.KubeletSocket, "", paths + "--kubelet-registry-dir"},
		{"plugin.cdiFeatureFlags", f.Plugin.CDIFeatureFlags, "", "no equivalent: Cleave writes its own CDI specs"},
		{"plugin.sharedDevicesAllocationPolicy", f.Plugin.SharedDevicesAllocationPolicy, "packed",
			"distributed spreads shares (placement: spread); partitions for one claim go to the first GPU that they fit on"},
		{"gfd.oneshot", f.GFD.Oneshot, nil, gfd},
		{"gfd.noTimestamp", f.GFD.NoTimestamp, nil, gfd},
		{"gfd.sleepInterval", f.GFD.SleepInterval, nil, gfd},
		{"gfd.outputFile", f.GFD.OutputFile, nil, gfd},
		{"gfd.machineTypeFile", f.GFD.MachineTypeFile, nil, gfd},
	} {
		if value := pointedTo(n.value); value != nil && fmt.Sprint(value) != fmt.Sprint(n.same) {
			i.note("flags."+n.field, value, "%s", n.instead)
		}
	}
}

// pointedTo is a flag's value; nil where the file has none.
func pointedTo(value any) any {
	switch value := value.(type) {
	case *string:
		if value != nil {
			return *value
		}
		return nil
	case *bool:
		if value != nil {
			return *value
		}
		return nil
	default:
		return value
	}
}
