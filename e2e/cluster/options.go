// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	// DefaultDir is the directory of the cluster when none is chosen. It is
	// short because socket paths below it are limited in length.
	DefaultDir = "/var/lib/cleave-cluster"
	// DefaultNodeName is the name of the node when none is chosen.
	DefaultNodeName = "cleave-node"

	// maxDirLen leaves room for the directory of containerd's shim sockets,
	// which containerd limits to 38 bytes.
	maxDirLen = 36

	modulePath = "github.com/cleave-dra/cleave"
)

// Options say what Up starts. The zero value is a good choice.
type Options struct {
	// Version of Kubernetes, one of Versions. Default: the environment
	// variable K8S_VERSION, else DefaultVersion.
	Version string
	// Dir holds all that the cluster owns. Default: DefaultDir.
	Dir string
	// NodeName names the node; with more than one it is followed by -1, -2 and so on. Default: DefaultNodeName.
	NodeName string
	// Nodes is the number of nodes. Default: one, which is this machine itself. Each of several has namespaces of its own.
	Nodes int
	// NodeLabels are put on the nodes before their kubelets start.
	NodeLabels map[string]string
	// FeatureGates are set on every Kubernetes component, besides the
	// defaults of the version.
	FeatureGates map[string]bool
	// RuntimeConfig switches APIs of the API server on or off, as in
	// "resource.k8s.io/v1beta2=true".
	RuntimeConfig []string
	// ControlPlane starts etcd and the API server alone: nodes are objects that no kubelet runs, and whoever starts the
	// cluster runs schedulers.
	ControlPlane bool
	// NRI has containerd serve the Node Resource Interface, which DRA drivers of CPUs and network cards use, at NRIDir.
	NRI bool
	// Environment is added to that of every component, as in "GOGC=400".
	Environment []string
	// Source is the root of the Cleave repository, where the modules of the
	// programs are. Default: found from the working directory upwards.
	Source string
	// BinDir keeps the built programs. Default: bin/kubernetes below Source.
	BinDir string
	// Output gets the progress, one line each. Default: nowhere.
	Output io.Writer
}

// Resolve fills in what a person may leave out and checks what was given,
// without a look at the machine.
func (o Options) Resolve() (Options, error) {
	if o.Version == "" {
		o.Version = os.Getenv(VersionVariable)
	}
	if o.Version == "" {
		o.Version = DefaultVersion
	}
	version, err := parseVersion(o.Version)
	if err != nil {
		return o, err
	}
	o.Version = version
	if o.NodeName == "" {
		o.NodeName = DefaultNodeName
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	if o.Nodes < 0 || o.Nodes > maxNodes || o.Nodes > 1 && o.ControlPlane {
		return o, fmt.Errorf("start %d nodes: there can be 1 to %d, and without kubelets there are none", o.Nodes, maxNodes)
	}
	o.Dir, err = checkDir(o.Dir)
	return o, err
}

// withDefaults fills in all that was left out.
func (o Options) withDefaults() (Options, error) {
	o, err := o.Resolve()
	if err != nil {
		return o, err
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	if o.Source == "" {
		if o.Source, err = FindSource(); err != nil {
			return o, err
		}
	}
	if o.BinDir == "" {
		o.BinDir = filepath.Join(o.Source, "bin", "kubernetes")
	}
	if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
		return o, fmt.Errorf("resolve the directory of the programs: %w", err)
	}
	return o, nil
}

// checkDir resolves the directory of a cluster and refuses one that cannot hold
// its sockets or must not be removed.
func checkDir(dir string) (string, error) {
	if dir == "" {
		dir = DefaultDir
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolve the cluster directory: %w", err)
	}
	// A link in the path would make the mount table and the processes speak
	// of another path than we do.
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	if strings.ContainsAny(abs, " \t\n\\\"'") {
		return "", fmt.Errorf("use %q as the cluster directory: choose a path without spaces, quotes and backslashes", abs)
	}
	if len(abs) > maxDirLen {
		return "", fmt.Errorf("use %s as the cluster directory: its path has %d bytes and may have %d, because sockets live below it", abs,
			len(abs), maxDirLen)
	}
	if strings.Count(abs, "/") < 2 {
		return "", fmt.Errorf("use %s as the cluster directory: choose a directory of its own, such as %s", abs, DefaultDir)
	}
	return abs, nil
}

// FindSource walks up from the working directory to the root of the repository.
func FindSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the Cleave repository: %w", err)
	}
	for start := dir; ; dir = filepath.Dir(dir) {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("find the Cleave repository: %w", err)
		}
		if first, _, _ := bytes.Cut(data, []byte("\n")); string(bytes.TrimSpace(first)) == "module "+modulePath {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the Cleave repository: no directory from %s upwards has the go.mod of %s; run this inside the repository",
				start, modulePath)
		}
	}
}
