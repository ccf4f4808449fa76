// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// layout knows where things are below the directory of a cluster.
type layout struct{ dir string }

// entries are the names that a cluster makes at the top of its directory. Down
// refuses a directory that holds anything else: it removes the whole directory.
var entries = []string{
	"cdi", "cni", "containerd", "etcd", "guests", "images", "kubeconfig", "kubelet",
	"logs", "manifests", "nodes", "pki", "pids", "run", "s", "state.json",
}

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{l.dir}, elem...)...)
}

func (l layout) state() string              { return l.path("state.json") }
func (l layout) kubeconfig() string         { return l.path("kubeconfig") }
func (l layout) pki(name string) string     { return l.path("pki", name) }
func (l layout) logFile(c Component) string { return l.path("logs", string(c)+".log") }
func (l layout) pidFile(c Component) string { return l.path("pids", string(c)) }
func (l layout) podLogs() string            { return l.path("logs", "pods") }
func (l layout) kubeletDir() string         { return l.path("kubelet") }
func (l layout) cdiDir() string             { return l.path("cdi") }
func (l layout) nriDir() string             { return l.path("run", "nri") }
func (l layout) images() string             { return l.path("images") }
func (l layout) containerdSocket() string   { return l.path("run", "containerd.sock") }
func (l layout) containerdState() string    { return l.path("run", "containerd") }
func (l layout) containerdConfig() string   { return l.path("containerd", "config.toml") }
func (l layout) kubeletConfig() string      { return l.path("kubelet", "config.json") }
func (l layout) componentConfig(c Component) string {
	return l.path("pki", string(c)+".kubeconfig")
}

// networkName is the name of the pod network. It is unique to the directory, so
// that what the network plugins keep elsewhere can be distinguished.
func (l layout) networkName() string {
	sum := sha256.Sum256([]byte(l.dir))
	return "cleave-" + hex.EncodeToString(sum[:4])
}

// directories are made, in this order, before anything starts.
func (l layout) directories() []string {
	return []string{l.path("pki"), l.path("pids"), l.path("logs"), l.path("etcd"), l.images()}
}

func (l layout) nodeDirectories() []string {
	return []string{
		l.path("pki"), l.path("pids"), l.path("logs"), l.podLogs(), l.path("run"), l.path("s"),
		l.path("containerd"), l.path("cni"), l.cdiDir(), l.path("manifests"),
		l.kubeletDir(), l.path("kubelet", "plugins"), l.path("kubelet", "plugins_registry"),
	}
}
