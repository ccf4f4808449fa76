// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster is a cluster that runs, or ran, in a directory.
type Cluster struct {
	layout layout
	state  state
}

// Open attaches to the cluster that Up made in a directory ("" for DefaultDir),
// in this program or in another. It does not report whether the cluster is healthy:
// Healthy does.
func Open(dir string) (*Cluster, error) {
	dir, err := checkDir(dir)
	if err != nil {
		return nil, err
	}
	l := layout{dir}
	s, err := readState(l)
	if err != nil {
		return nil, fmt.Errorf("open the cluster in %s (was it started?): %w", dir, err)
	}
	return &Cluster{l, s}, nil
}

// Fits reports whether Up with these options would make a cluster like this one.
func (c *Cluster) Fits(o Options) bool {
	return o.Version == c.state.Version && o.NodeName == c.state.NodeName && o.Nodes == c.state.Nodes &&
		o.ControlPlane == c.state.ControlPlane && o.NRI == c.state.NRI && maps.Equal(o.FeatureGates, c.state.FeatureGates) &&
		slices.Equal(o.RuntimeConfig, c.state.Runtime) &&
		slices.Equal(o.Environment, c.state.Environment)
}

// WithFeatureGates is the cluster whose components start with other feature gates. It is not written down: Open knows the first ones.
func WithFeatureGates(c *Cluster, gates map[string]bool) *Cluster {
	other := *c
	other.state.FeatureGates = gates
	return &other
}

// Down stops the cluster and removes its directory.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.layout.dir) }

// Version is the version of Kubernetes, such as "1.37.2".
func (c *Cluster) Version() string { return c.state.Version }

// Dir is the directory of the cluster.
func (c *Cluster) Dir() string { return c.layout.dir }

// NodeName is the name of the one node, or of the first of several.
func (c *Cluster) NodeName() string { return c.state.machines()[0].name }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.layout.kubeconfig() }

// APIServerPort is the port of the API server on 127.0.0.1; with several nodes, on their APIServerHost. Pods on the host's
// network reach it there, because nothing forwards the service address.
func (c *Cluster) APIServerPort() int { return c.state.Ports.APIServer }

// Kubectl is the path of a kubectl of the cluster's version.
func (c *Cluster) Kubectl() string { return filepath.Join(c.state.kubernetesDir(), "kubectl") }

// Scheduler is the path of a kube-scheduler of the cluster's version.
func (c *Cluster) Scheduler() string {
	return filepath.Join(c.state.kubernetesDir(), string(Scheduler))
}

// KubeletDir is the root directory of the kubelet. It and the directories below have this path on every node; where a program
// on this machine finds them, Node.HostPath says.
func (c *Cluster) KubeletDir() string { return c.layout.kubeletDir() }

// PluginsDir is where kubelet plugins keep their sockets.
func (c *Cluster) PluginsDir() string { return filepath.Join(c.KubeletDir(), "plugins") }

// RegistryDir is where kubelet plugins register.
func (c *Cluster) RegistryDir() string { return filepath.Join(c.KubeletDir(), "plugins_registry") }

// CDIDir is the one directory that containerd takes CDI specs from.
func (c *Cluster) CDIDir() string { return c.layout.cdiDir() }

// NRIDir has the socket nri.sock of containerd, with Options.NRI.
func NRIDir(c *Cluster) string { return c.layout.nriDir() }

// ContainerRuntime is the socket at which containerd serves the CRI, on each node.
func (c *Cluster) ContainerRuntime() string { return c.layout.containerdSocket() }

// LogFile is the path of a component's log; with several nodes, that of the first.
func (c *Cluster) LogFile(component Component) string {
	return c.Component(component).files().logFile(component)
}

// RESTConfig is the administrator's access, without a client-side rate limit
// that a test would notice.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 500, 1000
	return config, nil
}

// Client is a client with the administrator's access.
func (c *Cluster) Client() (kubernetes.Interface, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return client, nil
}
