// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// Config is the configuration of a plugin. Every path is as this process sees it, except DriverRoot.
type Config struct {
	// Version of the program, as reported in metrics.
	Version    string
	NodeName   string
	DriverName string
	// PodUID enables rolling updates: old and new plugin run concurrently, distinguished by it. Empty: one at a time.
	PodUID string

	// DaemonSet of the plugin's pod, as "namespace/name"; empty if there is none. Once it is deleted, a plugin that ends
	// without allocated claims removes its files.
	DaemonSet string

	// Kubeconfig is a file; empty for the service account of the pod.
	Kubeconfig string
	KubeQPS    float32
	KubeBurst  int

	PluginsDir  string // the kubelet's plugins directory
	RegistryDir string // the kubelet's plugins_registry directory
	CDIDir      string
	// HookDir is the directory of the hook programs that CDI specs refer to, executable by all users; empty for the plugin's own directory.
	HookDir string

	// DriverRoot is the root of the driver's files on the host, ContainerDriverRoot the same directory as this process
	// sees it; empty if the paths are equal. With driverroot.Auto, ContainerDriverRoot is where it sees the host's /.
	DriverRoot          string
	ContainerDriverRoot string
	// NVMLLibrary is the path of libnvidia-ml.so.1; empty to search for it under the driver root.
	NVMLLibrary string

	// CgroupRoot is the root of the host's cgroup v2 hierarchy, or contains the version 1 hierarchies as directories.
	CgroupRoot string

	Sysfs  string
	Procfs string

	// PolicyFile is a NodePolicy; empty for the policy that offers every tier.
	PolicyFile string
	// PolicyFormat is the format of PolicyFile; the zero value for NodePolicies.
	PolicyFormat policy.Format
	// PolicyLabels are node labels; the first of these present on the node selects its policy. Empty for v1alpha1.PolicyLabel.
	PolicyLabels []string
	// NodeLabels is whether the Node object describes the GPUs by labels; empty for LabelsOff.
	NodeLabels LabelMode
	// PauseClients are the labels of the Node object that the plugin may change to stop clients of GPUs; none by default.
	PauseClients []string
	// Notices are about the node's machine.
	Notices NoticeConfig
	// MPSSocket is the supervisor's socket; empty to disable MPS.
	MPSSocket string

	// ListAttributes publishes attributes as lists, if the API server accepts them.
	ListAttributes bool

	// MetricsAddress serves /metrics, /healthz and /readyz; empty for none.
	MetricsAddress string

	// UsageEvery is the time between two looks at what claims use of their devices; zero for none.
	UsageEvery time.Duration

	// DriverRetry is the time between two attempts to reach the driver.
	DriverRetry time.Duration
	// ReconcileEvery is the time between two comparisons of the records with the API server.
	ReconcileEvery time.Duration
}

// Validate reports every invalid field, by its flag.
func (c *Config) Validate() error {
	var errs []error
	errs = append(errs, nodeslices.CheckNodeName(c.NodeName), nodeslices.CheckDriverName(c.DriverName))
	for _, label := range c.PolicyLabels {
		if msgs := validation.IsQualifiedName(label); len(msgs) > 0 {
			errs = append(errs, fmt.Errorf("--policy-labels: %q is not a valid label name: %s", label, strings.Join(msgs, "; ")))
		}
	}
	errs = append(errs, c.NodeLabels.validate())
	for _, label := range c.PauseClients {
		if err := v1alpha1.CheckClientLabel(label); err != nil {
			errs = append(errs, fmt.Errorf("--pause-clients: %q %w", label, err))
		}
	}
	if namespace, name, ok := strings.Cut(c.DaemonSet, "/"); c.DaemonSet != "" &&
		(!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
		errs = append(errs, fmt.Errorf("--daemonset %q is not of the form namespace/name", c.DaemonSet))
	}
	if c.KubeQPS <= 0 || c.KubeBurst <= 0 {
		errs = append(errs, fmt.Errorf("--kube-api-qps %g and --kube-api-burst %d must be above zero", c.KubeQPS, c.KubeBurst))
	}
	for _, dir := range []struct{ flag, path string }{
		{"--kubelet-plugins-dir", c.PluginsDir}, {"--kubelet-registry-dir", c.RegistryDir}, {"--cdi-dir", c.CDIDir},
		{"--cgroup-root", c.CgroupRoot}, {"--sysfs", c.Sysfs}, {"--procfs", c.Procfs},
	} {
		if !filepath.IsAbs(dir.path) {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", dir.flag, dir.path))
		}
	}
	if c.DriverRoot != driverroot.Auto && !filepath.IsAbs(c.DriverRoot) {
		errs = append(errs, fmt.Errorf("--driver-root %q is neither an absolute path nor %s", c.DriverRoot, driverroot.Auto))
	}
	if c.HookDir != "" && !filepath.IsAbs(c.HookDir) {
		errs = append(errs, fmt.Errorf("--cdi-hook-dir %q is not an absolute path", c.HookDir))
	}
	if c.MPSSocket != "" && !filepath.IsAbs(c.MPSSocket) {
		errs = append(errs, fmt.Errorf("--mps-socket %q is not an absolute path", c.MPSSocket))
	}
	if c.ContainerDriverRoot != "" && !filepath.IsAbs(c.ContainerDriverRoot) {
		errs = append(errs, fmt.Errorf("--container-driver-root %q is not an absolute path", c.ContainerDriverRoot))
	}
	errs = append(errs, checkAddress(c.MetricsAddress), c.Notices.validate(), c.checkSocket())
	if c.UsageEvery != 0 && c.UsageEvery < time.Second {
		errs = append(errs, fmt.Errorf("--usage-every %s is neither 0 nor at least a second", c.UsageEvery))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"--driver-retry", c.DriverRetry}, {"--reconcile-every", c.ReconcileEvery}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %s is not above zero", d.flag, d.value))
		}
	}
	return errors.Join(errs...)
}

// checkAddress validates --metrics-address.
func checkAddress(address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("--metrics-address %q is not of the form address:port: %w", address, err)
	}
	return nil
}

// compatible reports whether manifests written for NVIDIA's DRA driver must run unchanged.
func (c *Config) compatible() bool { return c.DriverName == nvidia.DriverName }

// maxSocketPath is Linux' limit for the path of a Unix socket in bytes (unix(7): 108 with the zero at its end).
const maxSocketPath = 107

// checkSocket fails where the kubelet cannot reach the plugin's socket, which kubeletplugin names so with RollingUpdate. The one of the
// registration it shortens.
func (c *Config) checkSocket() error {
	if socket := filepath.Join(c.pluginDir(), "dra-"+c.PodUID+".sock"); len(socket) > maxSocketPath {
		return fmt.Errorf("--kubelet-plugins-dir: the path of the socket %s has %d bytes, and Linux allows %d: use a shorter one, such as a "+
			"symbolic link /var/lib/kubelet to the kubelet's directory", socket, len(socket), maxSocketPath)
	}
	return nil
}

// pluginDir is the directory of this driver's sockets, records, locks and hook.
func (c *Config) pluginDir() string {
	return filepath.Join(c.PluginsDir, c.DriverName)
}

// nodeDir is the directory shared by plugins of all driver names on the node.
func (c *Config) nodeDir() string { return filepath.Join(c.PluginsDir, records.SharedDir) }

// driverRoots are the directories to search for the driver.
func (c *Config) driverRoots() []driverroot.Root {
	return driverroot.Candidates(c.DriverRoot, c.ContainerDriverRoot)
}

// bootID identifies the current boot of the node.
func (c *Config) bootID() (string, error) { return store.BootID(c.Procfs) }
