// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	tests := map[string]struct {
		change func(c *Config)
		want   []string // nil: valid
	}{
		"all set":              {func(*Config) {}, nil},
		"no metrics":           {func(c *Config) { c.MetricsAddress = "" }, nil},
		"container root":       {func(c *Config) { c.DriverRoot, c.ContainerDriverRoot = "/run/nvidia/driver", "/driver-root" }, nil},
		"found by itself":      {func(c *Config) { c.DriverRoot, c.ContainerDriverRoot = "auto", "/host" }, nil},
		"metrics, no port":     {func(c *Config) { c.MetricsAddress = "localhost" }, []string{"--metrics-address", `"localhost"`}},
		"metrics, bad port":    {func(c *Config) { c.MetricsAddress = ":metrics" }, []string{"--metrics-address", `":metrics"`}},
		"usage off":            {func(c *Config) { c.UsageEvery = 0 }, nil},
		"usage too often":      {func(c *Config) { c.UsageEvery = time.Millisecond }, []string{"--usage-every", "1ms"}},
		"no node name":         {func(c *Config) { c.NodeName = "" }, []string{"--node-name", "spec.nodeName"}},
		"node name, no DNS":    {func(c *Config) { c.NodeName = "Node_1" }, []string{"--node-name", "Node_1"}},
		"no driver name":       {func(c *Config) { c.DriverName = "" }, []string{"--driver-name"}},
		"driver name, path":    {func(c *Config) { c.DriverName = "../x" }, []string{"--driver-name", "../x"}},
		"driver name, upper":   {func(c *Config) { c.DriverName = "GPU.cleave.dev" }, []string{"--driver-name", "GPU.cleave.dev"}},
		"driver name, 63":      {func(c *Config) { c.DriverName = strings.Repeat("a", 63) }, nil},
		"driver name, 64":      {func(c *Config) { c.DriverName = strings.Repeat("a", 64) }, []string{"--driver-name", "63"}},
		"no plugins directory": {func(c *Config) { c.PluginsDir = "" }, []string{"--kubelet-plugins-dir"}},
		"relative plugins":     {func(c *Config) { c.PluginsDir = "plugins" }, []string{"--kubelet-plugins-dir", `"plugins"`, "absolute"}},
		"relative registry":    {func(c *Config) { c.RegistryDir = "r" }, []string{"--kubelet-registry-dir"}},
		"a DaemonSet":          {func(c *Config) { c.DaemonSet = "cleave-system/cleave-plugin" }, nil},
		"a name alone":         {func(c *Config) { c.DaemonSet = "cleave-plugin" }, []string{"--daemonset", `"cleave-plugin"`}},
		"no namespace":         {func(c *Config) { c.DaemonSet = "/cleave-plugin" }, []string{"--daemonset"}},
		"no name":              {func(c *Config) { c.DaemonSet = "cleave-system/" }, []string{"--daemonset"}},
		"too many parts":       {func(c *Config) { c.DaemonSet = "a/b/c" }, []string{"--daemonset"}},
		"relative CDI":         {func(c *Config) { c.CDIDir = "./cdi" }, []string{"--cdi-dir"}},
		"relative root":        {func(c *Config) { c.DriverRoot = "driver" }, []string{"--driver-root", "auto"}},
		"relative there":       {func(c *Config) { c.ContainerDriverRoot = "driver" }, []string{"--container-driver-root"}},
		"relative sysfs":       {func(c *Config) { c.Sysfs = "sys" }, []string{"--sysfs"}},
		"no cgroup root":       {func(c *Config) { c.CgroupRoot = "" }, []string{"--cgroup-root"}},
		"relative socket":      {func(c *Config) { c.MPSSocket = "mps.sock" }, []string{"--mps-socket"}},
		"a socket":             {func(c *Config) { c.MPSSocket = "/run/cleave/mps/supervisor.sock" }, nil},
		"no procfs":            {func(c *Config) { c.Procfs = "" }, []string{"--procfs"}},
		"labels applied":       {func(c *Config) { c.NodeLabels = LabelsApply }, nil},
		"clients":              {func(c *Config) { c.PauseClients = []string{"nvidia.com/gpu.deploy.dcgm", "example.com/a"} }, nil},
		"clients, the driver":  {func(c *Config) { c.PauseClients = []string{"nvidia.com/gpu.deploy.driver"} }, []string{"--pause-clients", "nvidia.com/gpu.deploy.driver", "more than clients"}},
		"labels removed":       {func(c *Config) { c.NodeLabels = LabelsRemove }, nil},
		"labels, no mode":      {func(c *Config) { c.NodeLabels = "on" }, []string{"--node-labels", `"on"`, "none, apply, or remove"}},
		"retry zero":           {func(c *Config) { c.DriverRetry = 0 }, []string{"--driver-retry"}},
		"retry negative":       {func(c *Config) { c.DriverRetry = -time.Second }, []string{"--driver-retry", "-1s"}},
		"reconcile zero":       {func(c *Config) { c.ReconcileEvery = 0 }, []string{"--reconcile-every"}},
		"QPS zero throttles":   {func(c *Config) { c.KubeQPS = 0 }, []string{"--kube-api-qps"}},
		"burst zero":           {func(c *Config) { c.KubeBurst = 0 }, []string{"--kube-api-burst"}},
		"two things at once":   {func(c *Config) { c.NodeName, c.CDIDir = "", "cdi" }, []string{"--node-name", "--cdi-dir"}},
		"everything at once":   {func(c *Config) { *c = Config{} }, []string{"--node-name", "--driver-name", "--cdi-dir", "--sysfs", "--driver-retry"}},
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

func TestBootID(t *testing.T) {
	c := validConfig()
	c.Procfs = t.TempDir()
	if _, err := c.bootID(); err == nil || !strings.Contains(err.Error(), c.Procfs) {
		t.Errorf("missing file: got %v, want an error that names it", err)
	}
	path := filepath.Join(c.Procfs, "sys/kernel/random/boot_id")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{"6f0e\n": "6f0e", "6f0e": "6f0e"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := c.bootID(); err != nil || got != want {
			t.Errorf("content %q: got %q, %v, want %q", content, got, err, want)
		}
	}
	// With an empty one, the records of every boot would look like this one's.
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.bootID(); err == nil {
		t.Errorf("empty file: got %q, want an error", got)
	}
}
