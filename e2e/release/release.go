// SPDX-License-Identifier: Apache-2.0

// Package release installs Cleave with its Helm chart, as pods, on the simulated nodes of a local cluster.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
)

const (
	// Namespace is where the chart is installed.
	Namespace = "cleave-system"
	// NodeLabel is one by which the chart finds nodes with GPUs, with the value "true".
	NodeLabel = "nvidia.com/gpu.present"

	repository     = "cleave.local/cleave"
	image          = repository + ":e2e"
	schedulerImage = repository + "-scheduler:e2e"
	dashboardImage = repository + "-dashboard:e2e"
)

// Chart is the chart's directory in the repository source.
func Chart(source string) string { return filepath.Join(source, "deployments", "helm", "cleave") }

// Helm runs the repository's Helm (make helm builds it) with values on its standard input, if there are any, and returns
// what it prints. The error has what Helm complains of.
func Helm(ctx context.Context, source, values string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(source, "bin", "helm"), args...)
	if values != "" {
		command.Args = append(command.Args, "--values", "-")
		command.Stdin = strings.NewReader(values)
	}
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, complaints.String())
	}
	return out.String(), nil
}

// Bed is a cluster ready for the chart: its nodes have simulated GPUs, and containerd has Cleave's image. Taking the
// cluster down removes all of it.
type Bed struct {
	cluster *cluster.Cluster
	// Source is the root of the repository.
	Source string
	// Node is the simulated hardware, of the first node if there are several; nothing is started on it.
	Node *node.Node
	// Nodes are the simulated hardware of all nodes, as cluster.Nodes lists them.
	Nodes []*node.Node
	// MPSDir is the directory of the MPS supervisor, which has this path on every node.
	MPSDir string
}

// Images is the variable of the environment with the directory of the images to run, as OCI archives (make images). Without
// it, what runs are root file systems without a build of images, which need no more than a compiler: bin/image (make
// image-root), bin/scheduler-image (make scheduler-image-root) and bin/dashboard-image (make dashboard-image-root).
const Images = "CLEAVE_IMAGES"

// Previous is the variable of the environment with the source of the release before, built (make previous).
const Previous = "CLEAVE_PREVIOUS"

// PreviousTag is the tag of the image of the release before, once it is imported.
const PreviousTag = "previous"

// ImportPrevious gives containerd the image of the release before.
func ImportPrevious(ctx context.Context, c *cluster.Cluster, source string) error {
	root := filepath.Join(source, "bin", "image")
	programs, err := filepath.Glob(filepath.Join(root, "usr", "bin", "cleave*"))
	if err != nil {
		return fmt.Errorf("find the program of the image in %s: %w", root, err)
	}
	if len(programs) != 1 {
		return fmt.Errorf("find the program of the image in %s: there are %v", root, programs)
	}
	return importRoot(ctx, c, root, cluster.Image{
		Ref: repository + ":" + PreviousTag, Entrypoint: []string{"/usr/bin/" + filepath.Base(programs[0])}, Cmd: []string{"kubelet-plugin"},
	})
}

// Prepare creates a bed of a cluster. The repository source must have bin/nvml-sim, bin/libnvidia-ml.so.1 (make sim) and an
// image (see Images); model is that of the simulated nodes, such as hgx-h100. Without one, nodes have the GPUs of this machine, and
// only an image is needed.
func Prepare(ctx context.Context, c *cluster.Cluster, source, model string) (*Bed, error) {
	b := &Bed{cluster: c, Source: source}
	var err error
	if b.MPSDir, err = importCleave(ctx, c, source); err != nil || model == "" {
		return b, err
	}
	for _, on := range c.Nodes() {
		dir, err := on.GuestDir("node")
		if err != nil {
			return nil, err
		}
		opts := node.Options{Cluster: c, On: on, NodeName: on.Name(), Bin: filepath.Join(source, "bin"), Model: model, Dir: dir}
		if len(c.Nodes()) > 1 {
			opts.Seed = on.Name()
		}
		n, err := node.Create(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("simulate the hardware of node %s: %w", on.Name(), err)
		}
		b.Nodes = append(b.Nodes, n)
	}
	b.Node = b.Nodes[0]
	return b, nil
}

// Helm runs Helm on the cluster, in the namespace of the release. Tests name the chart, see Chart.
func (b *Bed) Helm(ctx context.Context, values string, args ...string) (string, error) {
	return Helm(ctx, b.Source, values, append(args, "--kubeconfig", b.cluster.Kubeconfig(), "--namespace", Namespace)...)
}

// importCleave gives containerd Cleave's image (see Images) and returns a directory for the MPS supervisor.
func importCleave(ctx context.Context, c *cluster.Cluster, source string) (mpsDir string, err error) {
	for _, n := range c.Nodes() {
		if mpsDir, err = n.GuestDir("mps"); err != nil {
			return "", err
		}
		// What pods mount here is seen by the host, and the other way around, as below /run of a real node.
		guests := filepath.Dir(mpsDir)
		err := n.Inside(func() error {
			return errors.Join(unix.Mount(guests, guests, "", unix.MS_BIND, ""), unix.Mount("", guests, "", unix.MS_SHARED, ""))
		})
		if err != nil {
			return "", fmt.Errorf("share mounts below %s with pods: %w", guests, err)
		}
		// The hook programs are there, and users of user namespaces run them.
		if err := os.Chmod(n.HostPath(guests), 0o711); err != nil {
			return "", fmt.Errorf("open the directory of hook programs: %w", err)
		}
	}
	return mpsDir, importImage(ctx, c, "cleave", filepath.Join(source, "bin", "image"),
		cluster.Image{Ref: image, Entrypoint: []string{"/usr/bin/cleave-node"}, Cmd: []string{"kubelet-plugin"}})
}

// ImportScheduler gives containerd the image of cleave-scheduler (see Images), by the name that the chart gives it.
func ImportScheduler(ctx context.Context, c *cluster.Cluster, source string) error {
	return importImage(ctx, c, "cleave-scheduler", filepath.Join(source, "bin", "scheduler-image"),
		cluster.Image{Ref: schedulerImage, Entrypoint: []string{"/usr/bin/cleave-scheduler"}})
}

// ImportDashboard gives containerd the dashboard's image (see Images), by the name that the chart gives it.
func ImportDashboard(ctx context.Context, c *cluster.Cluster, source string) error {
	return importImage(ctx, c, "cleave-dashboard", filepath.Join(source, "bin", "dashboard-image"),
		cluster.Image{Ref: dashboardImage, Entrypoint: []string{"/usr/bin/cleave"}, Cmd: []string{"dashboard"}})
}

// importImage imports the archive of an image, or makes one of a root file system.
func importImage(ctx context.Context, c *cluster.Cluster, name, root string, of cluster.Image) error {
	if dir := os.Getenv(Images); dir != "" {
		return c.ImportImage(ctx, cluster.Image{Ref: of.Ref, Archive: filepath.Join(dir, name+"-linux-"+runtime.GOARCH+".tar")})
	}
	return importRoot(ctx, c, root, of)
}

// importRoot imports an image that is made of a root file system.
func importRoot(ctx context.Context, c *cluster.Cluster, root string, of cluster.Image) error {
	var err error
	if of.Files, err = cluster.FilesOf(os.DirFS(root)); err != nil {
		return fmt.Errorf("read the image (CONTRIBUTING.md says what lays it out): %w", err)
	}
	return c.ImportImage(ctx, of)
}

// Cgroups is where the cgroup v2 file system is mounted on this machine, empty if nowhere that can be written.
func Cgroups() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	return ""
}

// Settings are the values that differ between releases on a bed.
type Settings struct {
	// APIHost and APIPort are where the plugin's pod reaches the API server, as nothing in the cluster makes Services work. By default
	// they are those of the API server, which several nodes reach.
	APIHost, APIPort string
	// Cgroups is where cgroup v2 is mounted, in which MPS servers then get cgroups of their own that taking the cluster
	// down does not remove. Empty to keep them in the supervisor's.
	Cgroups string
	// RegistryDir is where the plugin registers in place of the kubelet's directory, if it is not empty.
	RegistryDir string
	// Unprivileged gives the plugin a list of capabilities instead of all.
	Unprivileged bool
	// HostPort is the port of the plugin's metrics and health on the network of the host. 0 for a network of its own.
	HostPort int
}

// HookDir is the directory of the hook programs, which has this path on every node.
func (b *Bed) HookDir() string { return filepath.Join(filepath.Dir(b.MPSDir), "hooks") }

// APIServer is where pods of several nodes reach it.
func (b *Bed) APIServer() (host, port string) {
	return b.cluster.Nodes()[0].APIServerHost(), strconv.Itoa(b.cluster.APIServerPort())
}

// Values of a release that works on the bed: the driver's root and all other directories are the cluster's.
func (b *Bed) Values(s Settings) string {
	port := 8080
	if s.HostPort != 0 {
		port = s.HostPort
	}
	if s.APIHost == "" {
		s.APIHost, s.APIPort = b.APIServer()
	}
	args, volume, mount := "", "", ""
	if s.RegistryDir != "" {
		args = ", --kubelet-registry-dir=" + s.RegistryDir
		volume = ", {name: other-registry, hostPath: {path: " + s.RegistryDir + ", type: DirectoryOrCreate}}"
		mount = ", {name: other-registry, mountPath: " + s.RegistryDir + "}"
	}
	return strings.NewReplacer("$root", b.Node.Root(), "$mps", b.MPSDir, "$cgroups", s.Cgroups, "$kubelet", b.cluster.KubeletDir(),
		"$args", args, "$volume", volume, "$mount", mount, "$cdi", b.cluster.CDIDir(), "$hooks", b.HookDir(),
		"$host", s.APIHost, "$port", s.APIPort, "$privileged", strconv.FormatBool(!s.Unprivileged),
		"$network", strconv.FormatBool(s.HostPort != 0), "$metrics", strconv.Itoa(port)).Replace(`
image: {repository: cleave.local/cleave, tag: e2e, pullPolicy: Never}
driver: {root: $root}
kubelet: {dir: $kubelet}
cdi: {dir: $cdi, hookDir: $hooks}
plugin:
  privileged: $privileged
  hostNetwork: $network
  logVerbosity: 4
  extraArgs: [--procfs=/host$root/proc$args]
  env:
    - {name: KUBERNETES_SERVICE_HOST, value: $host}
    - {name: KUBERNETES_SERVICE_PORT, value: "$port"}
    - {name: SYSFS, value: /host$root/sys}
  # Simulated hardware keeps its state in files below the driver's root, so that is mounted once more, to be written.
  extraVolumes: [{name: hardware, hostPath: {path: $root}}$volume]
  extraVolumeMounts: [{name: hardware, mountPath: /host$root/}$mount]
mps: {dir: $mps, cgroup: "$cgroups", logVerbosity: 4}
metrics: {port: $metrics}
`)
}
