// SPDX-License-Identifier: Apache-2.0

// Package node runs Cleave on the node of a local cluster: a simulated driver root, and the kubelet plugin as a process
// of this machine that loads the simulated library as it would load the real one.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Options of a node.
type Options struct {
	Cluster *cluster.Cluster
	// Bin holds cleave, nvml-sim and libnvidia-ml.so.1.
	Bin string
	// Model of the simulated node, such as hgx-h100.
	Model string
	// NodeName to publish for. Default: the node of the cluster's kubelet.
	NodeName string
	// On is the node that has the driver root, where there are several: Dir is a path there. The plugin does not run there as a
	// process.
	On cluster.Node
	// Seed makes the UUIDs differ from those of nodes with another.
	Seed string
	// Dir keeps the driver root, and for a node without a kubelet its plugin directories.
	Dir string
	// Quiet keeps the plugin's log to what a production node logs, for measurements.
	Quiet bool
	// Driver is the name of the driver; empty for gpu.cleave.dev.
	Driver string
	// Environment is added to the plugin's.
	Environment []string
	// Flags are added to the plugin's command line.
	Flags []string
	// Registry is where the plugin registers, in place of the kubelet's directory.
	Registry string
}

// Node is a simulated node with its plugin.
type Node struct {
	// Supervisor is the node's MPS supervisor.
	Supervisor *Supervisor

	opts     Options
	plugin   *process.Program
	endpoint endpoint
}

// Create creates the simulated driver root, in place of an earlier one, and starts nothing.
func Create(ctx context.Context, opts Options) (*Node, error) {
	n := Attach(opts)
	if _, err := n.Sim(ctx, "create", "--node", opts.Model, "--seed", opts.Seed, "--force"); err != nil {
		return nil, err
	}
	return n, nil
}

// Run creates a node, and starts its supervisor and its plugin. It returns when the plugin is ready.
func Run(ctx context.Context, opts Options) (*Node, error) {
	n, err := Create(ctx, opts)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{n.Supervisor.Start, n.Start, n.WaitReady} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, n.Kill(), n.Supervisor.Kill())
		}
	}
	return n, nil
}

// Attach returns the node that an earlier Create made in the same directory.
func Attach(opts Options) *Node {
	if opts.NodeName == "" {
		opts.NodeName = opts.Cluster.NodeName()
	}
	n := &Node{opts: opts}
	n.Supervisor = &Supervisor{node: n}
	return n
}

// Root is the driver root.
func (n *Node) Root() string { return filepath.Join(n.opts.Dir, "root") }

// Log is the file with the plugin's output.
func (n *Node) Log() string { return filepath.Join(n.opts.Dir, "cleave.log") }

// PluginsDir is the kubelet's plugins directory, as the plugin gets it.
func (n *Node) PluginsDir() string {
	if n.hasKubelet() {
		return n.opts.Cluster.PluginsDir()
	}
	return filepath.Join(n.opts.Dir, "plugins")
}

// Socket is where the plugin serves the kubelet.
func (n *Node) Socket() string { return filepath.Join(n.PluginsDir(), n.driver(), "dra.sock") }

func (n *Node) driver() string { return cmp.Or(n.opts.Driver, "gpu.cleave.dev") }

// Records is the directory of claim records.
func (n *Node) Records() string {
	return filepath.Join(n.PluginsDir(), records.SharedDir, records.ClaimsDir)
}

// PID of the plugin.
func (n *Node) PID() int { return n.plugin.PID() }

// Running reports whether the plugin was started and not ended since.
func (n *Node) Running() bool { return n.plugin != nil }

// Readiness is nil if the plugin says that it is ready, else what it says.
func (n *Node) Readiness(ctx context.Context) error { return n.endpoint.ok(ctx, "/readyz") }

// SetFlags gives the plugin other flags from its next start on, in place of Options.Flags.
func (n *Node) SetFlags(flags ...string) { n.opts.Flags = flags }

// SetRegistry has the plugin register in another directory from its next start on; empty for that of the kubelet.
func (n *Node) SetRegistry(dir string) { n.opts.Registry = dir }

// Metrics are what the plugin reports at /metrics, by name and labels as they are written there.
func (n *Node) Metrics(ctx context.Context) (map[string]string, error) {
	return n.endpoint.metrics(ctx)
}

func (n *Node) hasKubelet() bool { return n.opts.NodeName == n.opts.Cluster.NodeName() }

// Sim runs nvml-sim on the node's driver root and returns what it prints.
func (n *Node) Sim(ctx context.Context, args ...string) (string, error) {
	args = append(args, "--root", n.Root())
	cmd := exec.CommandContext(ctx, filepath.Join(n.opts.Bin, "nvml-sim"), args...)
	var out []byte
	err := n.opts.On.Inside(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("run nvml-sim %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Partition is one of a simulated node, by the names that nvml-sim mig list gives it.
type Partition struct {
	GPU, GPUInstance, ComputeInstance, Profile, Placement, UUID string
}

// Partitions lists the partitions of the node's GPUs.
func (n *Node) Partitions(ctx context.Context) ([]Partition, error) {
	out, err := n.Sim(ctx, "mig", "list")
	if err != nil {
		return nil, err
	}
	var found []Partition
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 6 && strings.HasPrefix(f[5], "MIG-") {
			found = append(found, Partition{f[0], f[1], f[2], f[3], f[4], f[5]})
		}
	}
	return found, nil
}

// Start starts the plugin. It outlives this program unless Stop or Kill ends it, or the cluster goes down.
func (n *Node) Start(ctx context.Context) error {
	if !n.hasKubelet() { // which makes this directory
		if err := os.MkdirAll(n.RegistryDir(), 0o750); err != nil {
			return fmt.Errorf("create the plugin registry directory: %w", err)
		}
	}
	var err error
	if n.endpoint, err = newEndpoint(ctx); err != nil {
		return err
	}
	n.plugin, err = n.launch(n.Log(), n.args())
	return err
}

// RegistryDir is where the plugin registers: where the kubelet looks for plugins, unless Options say otherwise.
func (n *Node) RegistryDir() string {
	if n.opts.Registry != "" {
		return n.opts.Registry
	}
	if n.hasKubelet() {
		return n.opts.Cluster.RegistryDir()
	}
	return filepath.Join(n.opts.Dir, "registry")
}

// procfs is the node's /proc: the simulated one, or this machine's while there is no simulated node yet.
func (n *Node) procfs() string {
	simulated := filepath.Join(n.Root(), "proc")
	if _, err := os.Stat(simulated); err != nil {
		return "/proc"
	}
	return simulated
}

func (n *Node) args() []string {
	cdi := n.opts.Cluster.CDIDir()
	if !n.hasKubelet() {
		cdi = filepath.Join(n.opts.Dir, "cdi")
	}
	verbosity := "4"
	if n.opts.Quiet {
		verbosity = "2"
	}
	return append([]string{
		"kubelet-plugin", "--driver-name", n.driver(), "--node-name", n.opts.NodeName, "--kubeconfig", n.opts.Cluster.Kubeconfig(),
		"--kubelet-plugins-dir", n.PluginsDir(), "--kubelet-registry-dir", n.RegistryDir(), "--cdi-dir", cdi,
		"--driver-root", n.Root(), "--sysfs", filepath.Join(n.Root(), "sys"), "--procfs", n.procfs(),
		"--mps-socket", n.Supervisor.socket(), "--metrics-address", string(n.endpoint), "--v", verbosity,
	}, n.opts.Flags...)
}

// WaitReady waits until the plugin says it is ready, or ends, or ctx does. Without a kubelet nobody registers the
// plugin, and being served is enough.
func (n *Node) WaitReady(ctx context.Context) error {
	path := "/readyz"
	if !n.hasKubelet() {
		path = "/healthz"
	}
	return n.plugin.WaitReady(ctx, func(ctx context.Context) error { return n.endpoint.ok(ctx, path) })
}

// LogTail is the end of the plugin's log.
func (n *Node) LogTail(lines int) string { return process.Tail(n.Log(), lines) }

// Stop asks the plugin to end and waits for it.
func (n *Node) Stop() error { return end(&n.plugin, syscall.SIGTERM) }

// Kill ends the plugin as a crash does.
func (n *Node) Kill() error { return end(&n.plugin, syscall.SIGKILL) }

func end(p **process.Program, sig syscall.Signal) error {
	ended := *p
	*p = nil
	return ended.End(sig)
}

// launch runs cleave with its output in a file. It is bound to no context: a demo's programs go on when its command ends.
func (n *Node) launch(logFile string, args []string) (*process.Program, error) {
	cmd := exec.Command(filepath.Join(n.opts.Bin, "cleave-node"), args...) //nolint:noctx // see above
	cmd.Env = slices.Concat(os.Environ(), n.opts.Cluster.Environment(), n.opts.Environment)
	return process.Start(cmd, logFile)
}
