// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

func validConfig() Config {
	return Config{
		NodeName: "node-1", DriverName: "gpu.cleave.dev", KubeQPS: 100, KubeBurst: 200,
		PluginsDir: "/var/lib/kubelet/plugins", RegistryDir: "/var/lib/kubelet/plugins_registry", CDIDir: "/var/run/cdi",
		DriverRoot: "/", CgroupRoot: "/sys/fs/cgroup", Sysfs: "/sys", Procfs: "/proc", MetricsAddress: ":8080",
		DriverRetry: time.Second, ReconcileEvery: time.Minute, UsageEvery: time.Second,
	}
}

func TestConfig_Validate(t *testing.T) {
	notice := func(change func(c *NoticeConfig)) func(c *Config) {
		return func(c *Config) {
			c.Notices = NoticeConfig{Sources: []string{"node", "aws"}, URL: notices.MetadataURL, Policy: notices.Policy{Lead: time.Hour, EvictBefore: time.Minute}}
			change(&c.Notices)
		}
	}
	tests := map[string]struct {
		change func(c *Config)
		want   []string // nil: valid
	}{
		"all set":            {func(*Config) {}, nil},
		"no metrics":         {func(c *Config) { c.MetricsAddress = "" }, nil},
		"container root":     {func(c *Config) { c.DriverRoot, c.ContainerDriverRoot = "/run/nvidia/driver", "/driver-root" }, nil},
		"found by itself":    {func(c *Config) { c.DriverRoot, c.ContainerDriverRoot = "auto", "/host" }, nil},
		"metrics, no port":   {func(c *Config) { c.MetricsAddress = "localhost" }, []string{"--metrics-address", `"localhost"`}},
		"metrics, bad port":  {func(c *Config) { c.MetricsAddress = ":metrics" }, []string{"--metrics-address", `":metrics"`}},
		"usage off":          {func(c *Config) { c.UsageEvery = 0 }, nil},
		"usage too often":    {func(c *Config) { c.UsageEvery = time.Millisecond }, []string{"--usage-every", "1ms"}},
		"node name, no DNS":  {func(c *Config) { c.NodeName = "Node_1" }, []string{"--node-name", "Node_1"}},
		"driver name, path":  {func(c *Config) { c.DriverName = "../x" }, []string{"--driver-name", "../x"}},
		"driver name, upper": {func(c *Config) { c.DriverName = "GPU.cleave.dev" }, []string{"--driver-name", "GPU.cleave.dev"}},
		"driver name, 63":    {func(c *Config) { c.DriverName = strings.Repeat("a", 63) }, nil},
		"driver name, 64":    {func(c *Config) { c.DriverName = strings.Repeat("a", 64) }, []string{"--driver-name", "63"}},
		"relative plugins":   {func(c *Config) { c.PluginsDir = "plugins" }, []string{"--kubelet-plugins-dir", `"plugins"`, "absolute"}},
		"plugins far away": {func(c *Config) {
			c.PodUID, c.PluginsDir = "5f0c3a52-7d2b-4c1e-9d34-000000000001", "/var/snap/microk8s/common/var/lib/kubelet/plugins"
		}, []string{"--kubelet-plugins-dir", "has 110 bytes", "107"}},
		"plugins of k0s": {func(c *Config) {
			c.PodUID, c.PluginsDir = "5f0c3a52-7d2b-4c1e-9d34-000000000001", "/var/lib/k0s/kubelet/plugins"
		}, nil},
		"a DaemonSet":         {func(c *Config) { c.DaemonSet = "cleave-system/cleave-plugin" }, nil},
		"a name alone":        {func(c *Config) { c.DaemonSet = "cleave-plugin" }, []string{"--daemonset", `"cleave-plugin"`}},
		"no namespace":        {func(c *Config) { c.DaemonSet = "/cleave-plugin" }, []string{"--daemonset"}},
		"no name":             {func(c *Config) { c.DaemonSet = "cleave-system/" }, []string{"--daemonset"}},
		"too many parts":      {func(c *Config) { c.DaemonSet = "a/b/c" }, []string{"--daemonset"}},
		"relative root":       {func(c *Config) { c.DriverRoot = "driver" }, []string{"--driver-root", "auto"}},
		"relative there":      {func(c *Config) { c.ContainerDriverRoot = "driver" }, []string{"--container-driver-root"}},
		"relative socket":     {func(c *Config) { c.MPSSocket = "mps.sock" }, []string{"--mps-socket"}},
		"a socket":            {func(c *Config) { c.MPSSocket = "/run/cleave/mps/supervisor.sock" }, nil},
		"labels applied":      {func(c *Config) { c.NodeLabels = LabelsApply }, nil},
		"clients":             {func(c *Config) { c.PauseClients = []string{"nvidia.com/gpu.deploy.dcgm", "example.com/a"} }, nil},
		"clients, the driver": {func(c *Config) { c.PauseClients = []string{"nvidia.com/gpu.deploy.driver"} }, []string{"--pause-clients", "nvidia.com/gpu.deploy.driver", "more than clients"}},
		"labels removed":      {func(c *Config) { c.NodeLabels = LabelsRemove }, nil},
		"labels, no mode":     {func(c *Config) { c.NodeLabels = "on" }, []string{"--node-labels", `"on"`, "none, apply, or remove"}},
		"retry negative":      {func(c *Config) { c.DriverRetry = -time.Second }, []string{"--driver-retry", "-1s"}},
		"QPS zero throttles":  {func(c *Config) { c.KubeQPS = 0 }, []string{"--kube-api-qps"}},
		"burst zero":          {func(c *Config) { c.KubeBurst = 0 }, []string{"--kube-api-burst"}},
		"notices":             {notice(func(*NoticeConfig) {}), nil},
		"notices, unknown":    {notice(func(c *NoticeConfig) { c.Sources = []string{"ibm"} }), []string{`"ibm" is unknown`}},
		"notices, twice":      {notice(func(c *NoticeConfig) { c.Sources = []string{"aws", "aws"} }), []string{"named twice"}},
		"notices, no address": {notice(func(c *NoticeConfig) { c.URL = "169.254.169.254" }), []string{"--metadata-url"}},
		"notices, no lead":    {notice(func(c *NoticeConfig) { c.Lead = 0 }), []string{"--notice-lead"}},
		"eviction first":      {notice(func(c *NoticeConfig) { c.EvictBefore = 2 * time.Hour }), []string{"--notice-evict-before 2h"}},
		"eviction, negative":  {notice(func(c *NoticeConfig) { c.EvictBefore = -1 }), []string{"--notice-evict-before"}},
		"everything at once": {func(c *Config) { *c = Config{} }, []string{"--node-name", "spec.nodeName", "--driver-name", "--kube-api-qps",
			"--kubelet-plugins-dir", "--kubelet-registry-dir", "--cdi-dir", "--cgroup-root", "--sysfs", "--procfs", "--driver-root", "--driver-retry", "--reconcile-every"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := validConfig()
			tt.change(&c)
			err := c.Validate()
			if tt.want == nil {
				if err != nil {
					t.Errorf("Validate: %v", err)
				}
				return
			}
			if err == nil {
				t.Fatalf("got no error, want one that says %q", tt.want)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.HasSuffix(err.Error(), ": ") {
				t.Errorf("error %q ends in the middle", err)
			}
		})
	}
}
