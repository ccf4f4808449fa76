// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
	"github.com/cleave-dra/cleave/pkg/driver/plugin"
)

// reexec replaces this process with the same program and command line: a loaded libnvidia-ml cannot be replaced, nor can the owner
// of ResourceSlices.
func reexec(ctx context.Context, why error) error {
	klog.FromContext(ctx).Info("Re-executing the plugin", "reason", why.Error())
	klog.Flush()
	if err := syscall.Exec(selfProgram, os.Args, os.Environ()); err != nil { //nolint:gosec // itself, as it was started
		return fmt.Errorf("re-execute %s: %w", os.Args[0], err)
	}
	return nil
}

func newKubeletPlugin() *cobra.Command {
	config := plugin.Config{Version: cli.Version}
	policies := cli.PolicyFlags{}
	service := cli.NewService()
	cmd := &cobra.Command{
		Use:   "kubelet-plugin",
		Short: "Serve a node's GPUs to its kubelet",
		Long: "kubelet-plugin publishes the node's GPUs as ResourceSlices, and prepares and unprepares claims for the kubelet.\n" +
			"It runs until it is stopped. Without an NVIDIA driver it waits for one and reports that.\n\n" +
			cli.EnvironmentHelp + "--node-name by NODE_NAME.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.Begin(cmd.Flags(), config.Validate); err != nil {
				return err
			}
			config.PolicyFile, config.PolicyFormat = policies.File, policies.Format
			err := plugin.Run(cmd.Context(), config)
			if !plugin.IsRestart(err) {
				return err
			}
			signal.Reset(os.Interrupt, syscall.SIGTERM) // from here on signals kill the program
			if cmd.Context().Err() != nil {             // it was already told to end, which the next program would not know
				return nil //nolint:nilerr // see above
			}
			return reexec(cmd.Context(), err)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&config.NodeName, "node-name", "", "name of this node's Node object")
	flags.StringVar(&config.DriverName, "driver-name", v1alpha1.Group,
		"name of the DRA driver; "+nvidia.DriverName+" runs manifests written for NVIDIA's")
	flags.StringVar(&config.PodUID, "pod-uid", "", "UID of this pod; lets the next release start alongside this one in a rolling update")
	flags.StringVar(&config.DaemonSet, "daemonset", "",
		"DaemonSet of this pod, as namespace/name; once it is deleted, a plugin without allocations removes its files when it ends")
	flags.StringVar(&config.Kubeconfig, "kubeconfig", "", "kubeconfig file; empty for the pod's service account")
	flags.Float32Var(&config.KubeQPS, "kube-api-qps", 1000,
		"sustained requests per second to the API server, which limits them by its own fairness")
	flags.IntVar(&config.KubeBurst, "kube-api-burst", 1000, "burst of requests to the API server")
	flags.StringVar(&config.PluginsDir, "kubelet-plugins-dir", kubeletplugin.KubeletPluginsDir, "the kubelet's plugins directory")
	flags.StringVar(&config.RegistryDir, "kubelet-registry-dir", kubeletplugin.KubeletRegistryDir, "the kubelet's plugin registry directory")
	flags.StringVar(&config.CDIDir, "cdi-dir", kubeletplugin.DefaultCDIDir, "directory that the container runtime reads CDI specs from")
	flags.StringVar(&config.HookDir, "cdi-hook-dir", "", "directory of the hook programs that CDI specs name, at the same path on the host, "+
		"for pods with user namespaces; empty for the plugin's own, which only root can access")
	cli.AddDriver(flags, &config.DriverRoot, &config.ContainerDriverRoot, &config.NVMLLibrary, "/")
	flags.StringVar(&config.CgroupRoot, "cgroup-root", "/sys/fs/cgroup",
		"where the host's cgroups are mounted: those of pods, and with version 2 those whose memory drivers limit")
	flags.StringVar(&config.Sysfs, "sysfs", "/sys", "the node's sysfs")
	flags.StringVar(&config.Procfs, "procfs", "/proc",
		"the node's procfs; while the driver is released, partitions can be proven the same as long as this mount exists")
	policies.AddFile(flags)
	flags.StringSliceVar(&config.PolicyLabels, "policy-labels", []string{v1alpha1.PolicyLabel},
		"node labels, of which the first that the node has names its policy")
	flags.StringVar((*string)(&config.NodeLabels), "node-labels", string(plugin.LabelsOff),
		"labels of the Node object that describe its GPUs, in the names of GPU feature discovery: "+plugin.LabelModes())
	flags.StringSliceVar(&config.PauseClients, "pause-clients", nil, "labels of the Node object that a policy may name in pauseClients: the "+
		"plugin sets them from "+v1alpha1.ClientsDeployed+" to "+v1alpha1.ClientsPaused+" and back")
	addNotices(flags, &config.Notices)
	flags.StringVar(&config.MPSSocket, "mps-socket", mps.DefaultSocket, "socket of cleave-node mps-supervisor; empty to disable MPS")
	flags.BoolVar(&config.ListAttributes, "list-attributes", false,
		"publish numaNode as a list: the GPU's NUMA node and the others of its socket; "+
			"needs the feature gate DRAListTypeAttributes, which the plugin checks at the API server")
	flags.StringVar(&config.MetricsAddress, "metrics-address", ":8080", "address of /metrics, /healthz and /readyz; empty for none")
	flags.DurationVar(&config.UsageEvery, "usage-every", 15*time.Second,
		"time between looks at what claims use of their devices, for metrics; 0 for none")
	flags.DurationVar(&config.DriverRetry, "driver-retry", 2*time.Second, "time between attempts to reach the NVIDIA driver")
	flags.DurationVar(&config.ReconcileEvery, "reconcile-every", 5*time.Minute,
		"time between comparisons of the node's claims with the API server")
	service.AddFlags(flags)
	return cmd
}

// addNotices adds the flags of notices about the node's machine.
func addNotices(flags *pflag.FlagSet, config *plugin.NoticeConfig) {
	flags.StringSliceVar(&config.Sources, "notices", nil,
		"where notices that the machine is taken away or restarted come from: "+strings.Join(notices.Names(), ", ")+"; none by default")
	flags.DurationVar(&config.Lead, "notice-lead", time.Hour, "how long before its time a notice takes effect")
	flags.DurationVar(&config.EvictBefore, "notice-evict-before", 0,
		"how long before the time of a notice the pods of the node's devices are evicted; 0 for never")
	flags.StringVar(&config.URL, "metadata-url", notices.MetadataURL, "the cloud's metadata service, which a proxy on the node may replace")
}
