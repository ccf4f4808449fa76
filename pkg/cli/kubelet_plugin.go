// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/plugin"
)

// gcPercent trades a little CPU for memory: an idle node daemon has little garbage and nothing to hurry for.
const gcPercent = 50

// startAnew puts the same program with the same command line in place of this one.
func startAnew(ctx context.Context) error {
	klog.FromContext(ctx).Info("Starting anew, with the driver as it is now")
	klog.Flush()
	if err := syscall.Exec(selfProgram, os.Args, os.Environ()); err != nil { //nolint:gosec // itself, as it was started
		return fmt.Errorf("start %s anew: %w", os.Args[0], err)
	}
	return nil
}

func newKubeletPlugin() *cobra.Command {
	config := plugin.Config{}
	policies := policyFlags{}
	service := newService()
	cmd := &cobra.Command{
		Use:   "kubelet-plugin",
		Short: "Serve a node's GPUs to its kubelet",
		Long: "kubelet-plugin publishes the node's GPUs as ResourceSlices, and prepares and unprepares claims for the kubelet.\n" +
			"It runs until it is told to stop. Without an NVIDIA driver it waits for one and says so.\n\n" +
			"Every flag can also be set by the environment variable of its name: --node-name by NODE_NAME.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.begin(cmd.Flags(), config.Validate); err != nil {
				return err
			}
			config.PolicyFile, config.PolicyFormat = policies.file, policies.format
			err := plugin.Run(cmd.Context(), config)
			if errors.Is(err, plugin.ErrDriverBack) {
				return startAnew(cmd.Context())
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&config.NodeName, "node-name", "", "name of this node's Node object")
	flags.StringVar(&config.DriverName, "driver-name", v1alpha1.Group, "name of the DRA driver; "+nvidia.DriverName+" runs manifests written for NVIDIA's")
	flags.StringVar(&config.PodUID, "pod-uid", "", "UID of this pod; lets the next release start beside this one in a rolling update")
	flags.StringVar(&config.DaemonSet, "daemonset", "", "DaemonSet of this pod, as namespace/name; once it is gone, a plugin that ends and holds nothing takes its files away")
	flags.StringVar(&config.Kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the pod's service account")
	flags.Float32Var(&config.KubeQPS, "kube-api-qps", 1000, "requests a second to the API server, lasting; what a node can ask for, the server's own fairness keeps in bounds")
	flags.IntVar(&config.KubeBurst, "kube-api-burst", 1000, "requests at once to the API server")
	flags.StringVar(&config.PluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir, "the kubelet's plugins folder")
	flags.StringVar(&config.RegistryDir, "kubelet-registry-dir", kubeletplugin.KubeletRegistryDir, "the kubelet's plugin registry folder")
	flags.StringVar(&config.CDIDir, "cdi-dir", kubeletplugin.DefaultCDIDir, "folder in which the container runtime looks for CDI specs")
	flags.StringVar(&config.HookDir, "cdi-hook-dir", "", "directory for the hook programs that CDI specs name, at the same path on the host, for pods with user namespaces; empty for the plugin's own, which is root's alone")
	flags.StringVar(&config.DriverRoot, "driver-root", "/", "root of the NVIDIA driver's files on the host; auto for the first of / and /run/nvidia/driver that has a driver")
	flags.StringVar(&config.ContainerDriverRoot, "container-driver-root", "", "where this process sees the driver root, or with --driver-root=auto the host's /; empty if at the same path")
	flags.StringVar(&config.NVMLLibrary, "nvml-library", "", "path of libnvidia-ml.so.1; empty to look under the driver root")
	flags.StringVar(&config.CgroupRoot, "cgroup-root", "/sys/fs/cgroup", "root of the host's cgroup v2 hierarchy, by which a driver may limit memory")
	flags.StringVar(&config.Sysfs, "sysfs", "/sys", "the node's sysfs")
	flags.StringVar(&config.Procfs, "procfs", "/proc", "the node's procfs")
	policies.addFile(flags)
	flags.StringVar(&config.MPSSocket, "mps-socket", mps.DefaultSocket, "socket of cleave mps-supervisor; empty to share no GPU by MPS")
	flags.BoolVar(&config.ListAttributes, "list-attributes", false,
		"publish numaNode as a list: the GPU's NUMA node and the others of its socket; needs the feature gate DRAListTypeAttributes, and the plugin asks the API server for it")
	flags.StringVar(&config.MetricsAddress, "metrics-address", ":8080", "address of /metrics, /healthz and /readyz; empty for none")
	flags.DurationVar(&config.DriverRetry, "driver-retry", 2*time.Second, "time between attempts to reach the NVIDIA driver")
	flags.DurationVar(&config.ReconcileEvery, "reconcile-every", 5*time.Minute, "time between comparisons of the node's claims with the API server")
	service.addFlags(flags)
	return cmd
}
