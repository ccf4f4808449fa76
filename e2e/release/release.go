// SPDX-License-Identifier: Apache-2.0

// Package release installs Cleave with its Helm chart, as pods, on the simulated node of a local cluster.
package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

	image          = "cleave.local/cleave:e2e"
	schedulerImage = "cleave.local/cleave-scheduler:e2e"
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

// Bed is a cluster ready for the chart: its node has simulated GPUs, and containerd has Cleave's image. Taking the
// cluster down removes all of it.
type Bed struct {
	cluster *cluster.Cluster
	// Node is the simulated hardware; nothing is started on it.
	Node *node.Node
	// MPSDir is the directory of the MPS supervisor.
	MPSDir string
}

// Prepare creates a bed of a cluster. The repository source must have bin/nvml-sim, bin/libnvidia-ml.so.1 and bin/image
// (make image-root); model is that of the simulated node, such as hgx-h100.
func Prepare(ctx context.Context, c *cluster.Cluster, source, model string) (*Bed, error) {
	b := &Bed{cluster: c}
	var err error
	if b.MPSDir, err = Import(ctx, c, source); err != nil {
		return nil, err
	}
	dir, err := c.GuestDir("node")
	if err != nil {
		return nil, err
	}
	b.Node, err = node.Create(ctx, node.Options{Cluster: c, Bin: filepath.Join(source, "bin"), Model: model, Dir: dir})
	return b, err
}

// Import gives containerd Cleave's image (bin/image, which make image-root lays out) and returns a directory for the MPS
// supervisor.
func Import(ctx context.Context, c *cluster.Cluster, source string) (mpsDir string, err error) {
	if mpsDir, err = c.GuestDir("mps"); err != nil {
		return "", err
	}
	// What pods mount here is seen by the host, and the other way around, as below /run of a real node.
	guests := filepath.Dir(mpsDir)
	if err := errors.Join(unix.Mount(guests, guests, "", unix.MS_BIND, ""), unix.Mount("", guests, "", unix.MS_SHARED, "")); err != nil {
		return "", fmt.Errorf("share mounts below %s with pods: %w", guests, err)
	}
	files, err := cluster.FilesOf(os.DirFS(filepath.Join(source, "bin", "image")))
	if err != nil {
		return "", fmt.Errorf("read the image (make image-root lays it out): %w", err)
	}
	return mpsDir, c.ImportImage(ctx, cluster.Image{Ref: image, Files: files, Entrypoint: []string{"/usr/bin/cleave"},
		Cmd: []string{"kubelet-plugin"}})
}

// ImportScheduler gives containerd the image of cleave-scheduler (bin/scheduler-image, which make scheduler-image-root lays
// out), by the name that the chart gives it.
func ImportScheduler(ctx context.Context, c *cluster.Cluster, source string) error {
	files, err := cluster.FilesOf(os.DirFS(filepath.Join(source, "bin", "scheduler-image")))
	if err != nil {
		return fmt.Errorf("read the scheduler's image (make scheduler-image-root lays it out): %w", err)
	}
	return c.ImportImage(ctx, cluster.Image{Ref: schedulerImage, Files: files, Entrypoint: []string{"/usr/bin/cleave-scheduler"}})
}

// Settings are the values that differ between releases on a bed.
type Settings struct {
	// APIHost and APIPort are where the plugin's pod reaches the API server, as nothing in the cluster makes Services work.
	APIHost, APIPort string
	// Cgroups is where cgroup v2 is mounted, in which MPS servers then get cgroups of their own that taking the cluster
	// down does not remove. Empty to keep them in the supervisor's.
	Cgroups string
	// Unprivileged gives the plugin a list of capabilities instead of all.
	Unprivileged bool
	// HostPort is the port of the plugin's metrics and health on the network of the host. 0 for a network of its own.
	HostPort int
}

// Values of a release that works on the bed: the driver's root and all other directories are the cluster's.
func (b *Bed) Values(s Settings) string {
	port := 8080
	if s.HostPort != 0 {
		port = s.HostPort
	}
	return strings.NewReplacer("$root", b.Node.Root(), "$mps", b.MPSDir, "$cgroups", s.Cgroups, "$kubelet", b.cluster.KubeletDir(),
		"$cdi", b.cluster.CDIDir(), "$host", s.APIHost, "$port", s.APIPort, "$privileged", strconv.FormatBool(!s.Unprivileged),
		"$network", strconv.FormatBool(s.HostPort != 0), "$metrics", strconv.Itoa(port)).Replace(`
image: {repository: cleave.local/cleave, tag: e2e, pullPolicy: Never}
driver: {root: $root}
kubelet: {dir: $kubelet}
cdi: {dir: $cdi}
plugin:
  privileged: $privileged
  hostNetwork: $network
  logVerbosity: 4
  env:
    - {name: KUBERNETES_SERVICE_HOST, value: $host}
    - {name: KUBERNETES_SERVICE_PORT, value: "$port"}
    - {name: SYSFS, value: /host$root/sys}
    - {name: PROCFS, value: /host$root/proc}
  # Simulated hardware keeps its state in files below the driver's root, so that is mounted once more, to be written.
  extraVolumes: [{name: hardware, hostPath: {path: $root}}]
  extraVolumeMounts: [{name: hardware, mountPath: /host$root/}]
mps: {dir: $mps, cgroup: "$cgroups", logVerbosity: 4}
metrics: {port: $metrics}
`)
}
