// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestInspect_EnvironmentOfThePlugin(t *testing.T) {
	plugin := map[string]string{
		"DRIVER_NAME": "gpu.nvidia.com", "DRIVER_ROOT": "/run/nvidia/driver", "CONTAINER_DRIVER_ROOT": "/host/run/nvidia/driver",
		"KUBELET_PLUGINS_DIR": "/k/plugins", "MPS_SOCKET": "/mps/s", "SYSFS": "/host/sys", "NVML_LIBRARY": "/lib",
		// What the plugin does not have, or means otherwise.
		"OUTPUT": "json", "POLICY": "/etc/policies", "NODE_NAME": "n", "NODE_MODEL": "t4", "KUBECONFIG": "/kube",
		"FROM_CLUSTER": "n", "ASCII": "true",
	}
	everything := []string{
		"container-driver-root=/host/run/nvidia/driver", "driver-name=gpu.nvidia.com", "driver-root=/run/nvidia/driver",
		"kubelet-plugins-dir=/k/plugins", "mps-socket=/mps/s", "nvml-library=/lib", "sysfs=/host/sys",
	}
	tests := map[string]struct {
		args, want []string
	}{
		"no flags":       {nil, everything},
		"another output": {[]string{"-o", "json"}, append([]string{"output=json"}, everything...)},
		"another root": {[]string{"--driver-root=/x"}, []string{
			"driver-name=gpu.nvidia.com", "driver-root=/x", "kubelet-plugins-dir=/k/plugins", "mps-socket=/mps/s", "sysfs=/host/sys",
		}},
		"a cluster": {[]string{"--from-cluster=n"}, []string{"driver-name=gpu.nvidia.com", "from-cluster=n"}},
		"a model":   {[]string{"--node-model=t4"}, []string{"driver-name=gpu.nvidia.com", "node-model=t4"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &inspectFlags{}
			flags := newInspectCommand(f).Flags()
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := f.FromPlugin(flags, func(name string) string { return plugin[name] }); err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			flags.Visit(func(flag *pflag.Flag) { got[flag.Name+"="+flag.Value.String()] = true })
			want := map[string]bool{}
			for _, line := range tt.want {
				want[line] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
}
