// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// pauseImage is what holds the namespaces of a pod.
const pauseImage = "cleave.local/pause:e2e"

const (
	// podRange is where pods that are not on the host's network get addresses.
	podRange = "10.86.0.0/16"
	// PodGateway is the address of this machine for such pods, as long as
	// there is one. The API server does not listen on it, as it would for
	// everybody; but its certificate is good for a program here that forwards
	// connections to it.
	PodGateway = "10.86.0.1"
)

// kubeletConfiguration is the part of the kubelet's configuration that differs
// from its defaults. It is written as JSON, which is YAML too.
func kubeletConfiguration(l layout, s state, m machine) map[string]any {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",

		"address":            m.address,
		"port":               s.Ports.Kubelet,
		"healthzBindAddress": m.address,
		"healthzPort":        s.Ports.KubeletHealth,
		"readOnlyPort":       0,
		"tlsCertFile":        l.pki("kubelet.crt"),
		"tlsPrivateKeyFile":  l.pki("kubelet.key"),
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": l.pki("ca.crt")},
		},
		"authorization": map[string]any{"mode": "Webhook"},

		"containerRuntimeEndpoint": "unix://" + l.containerdSocket(),
		"podLogsDir":               l.podLogs(),
		"volumePluginDir":          l.path("kubelet", "volume-plugins"),
		"staticPodPath":            l.path("manifests"),
		"resolvConf":               "/etc/resolv.conf",
		// Nobody answers there; without it every pod gets a warning.
		"clusterDNS":    []string{dnsAddress},
		"clusterDomain": "cluster.local",

		// The node's own resources are not managed: it may lack control
		// groups, capabilities and room that a real node has.
		"failCgroupV1":                  false,
		"cgroupDriver":                  "cgroupfs",
		"cgroupsPerQOS":                 s.Host.PodGroups,
		"enforceNodeAllocatable":        []string{},
		"failSwapOn":                    false,
		"localStorageCapacityIsolation": false,
		"evictionHard": map[string]any{"memory.available": "50Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
			"imagefs.available": "1%", "imagefs.inodesFree": "1%"},
		// Imported images cannot be pulled again, so none is collected.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		// No firewall rules: nothing here needs them, and they would stay.
		"makeIPTablesUtilChains": false,
		"maxPods":                250,
		// When the devices of a pod could not be prepared, the kubelet tries
		// again after this time; by default after a minute to one and a half.
		"syncFrequency": "5s",
		// A program that is killed again and again is back after a second, not after up to five minutes.
		"crashLoopBackOff": map[string]any{"maxContainerRestartPeriod": "1s"},
	}
	if s.Host.PodGroups {
		config["cgroupRoot"] = l.podGroupOf(m)
	}
	if s.several() {
		// It is renewed every two seconds, so that a lost node is noticed early.
		config["nodeLeaseDurationSeconds"] = 8
	}
	if len(s.FeatureGates) > 0 {
		config["featureGates"] = s.FeatureGates
	}
	return config
}

// containerdConfiguration keeps everything that containerd writes below the
// directory of the cluster, and takes CDI specs from there alone.
func containerdConfiguration(l layout, s state) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("version = 3")
	line("root = %s", strconv.Quote(l.path("containerd", "root")))
	line("state = %s", strconv.Quote(l.containerdState()))
	// Other snapshotters and tracing are not used, and node resource plugins by few tests.
	disabled := []string{
		"io.containerd.nri.v1.nri",
		"io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
		"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile",
		"io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs",
		"io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
	}
	if s.NRI {
		disabled = disabled[1:]
	}
	line("disabled_plugins = [%s]", quoteAll(disabled...))
	line("")
	if s.NRI {
		line("[plugins.'io.containerd.nri.v1.nri']")
		line("  disable = false")
		line("  socket_path = %s", strconv.Quote(filepath.Join(l.nriDir(), "nri.sock")))
		line("  plugin_path = %s", strconv.Quote(filepath.Join(l.nriDir(), "plugins")))
		line("  plugin_config_path = %s", strconv.Quote(filepath.Join(l.nriDir(), "conf.d")))
		line("")
	}
	line("[grpc]")
	line("  address = %s", strconv.Quote(l.containerdSocket()))
	line("")
	line("[plugins.'io.containerd.internal.v1.opt']")
	line("  path = %s", strconv.Quote(l.path("containerd", "opt")))
	line("")
	line("[plugins.'io.containerd.shim.v1.manager']")
	line("  socket_dir = %s", strconv.Quote(l.path("s")))
	line("")
	line("[plugins.'io.containerd.grpc.v1.cri']")
	line("  stream_server_address = %s", strconv.Quote(loopback))
	line("  stream_server_port = \"0\"")
	line("")
	line("[plugins.'io.containerd.cri.v1.images']")
	line("  snapshotter = \"overlayfs\"")
	line("[plugins.'io.containerd.cri.v1.images'.pinned_images]")
	line("  sandbox = %s", strconv.Quote(pauseImage))
	line("")
	line("[plugins.'io.containerd.cri.v1.runtime']")
	line("  cdi_spec_dirs = [%s]", quoteAll(l.cdiDir()))
	line("  restrict_oom_score_adj = %t", s.Host.RestrictOOMScore)
	line("  disable_apparmor = true")
	line("  netns_mounts_under_state_dir = true")
	line("  tolerate_missing_hugetlb_controller = true")
	line("[plugins.'io.containerd.cri.v1.runtime'.cni]")
	line("  bin_dirs = [%s]", quoteAll(s.Host.CNI))
	line("  conf_dir = %s", strconv.Quote(l.path("cni")))
	line("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]")
	line("  runtime_type = \"io.containerd.runc.v2\"")
	line("[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]")
	line("  BinaryName = %s", strconv.Quote(filepath.Join(s.toolsDir(), "runc")))
	line("  Root = %s", strconv.Quote(l.path("run", "runc")))
	line("  SystemdCgroup = false")
	return b.String()
}

func quoteAll(list ...string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = strconv.Quote(s)
	}
	return strings.Join(quoted, ", ")
}

// networkConfiguration gives a pod a point-to-point link to the host: enough
// to start and to be reached from here, and gone with the pod.
func networkConfiguration(l layout, m machine) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       l.networkName(),
		"plugins": []any{map[string]any{
			"type": "ptp",
			"ipam": map[string]any{
				"type":    "host-local",
				"ranges":  []any{[]any{map[string]any{"subnet": m.pods}}},
				"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
				"dataDir": l.path("cni", "leases"),
			},
		}},
	}
}

// writeNodeConfiguration writes the configuration of kubelet, containerd and
// the pod network of a node. What it says has paths as the node sees them.
func writeNodeConfiguration(l layout, s state, m machine) error {
	files := l.layoutOf(m)
	if err := writeJSON(files.kubeletConfig(), kubeletConfiguration(l, s, m)); err != nil {
		return err
	}
	if err := writeFile(files.containerdConfig(), []byte(containerdConfiguration(l, s))); err != nil {
		return err
	}
	return writeJSON(files.path("cni", "10-cleave.conflist"), networkConfiguration(l, m))
}
