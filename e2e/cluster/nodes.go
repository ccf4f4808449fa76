// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxNodes keeps the names and the addresses of nodes to one digit; memory ends sooner.
const maxNodes = 9

// machine is what the configuration of a node needs to know of it.
type machine struct {
	// number is 0 for the one node that is this machine itself, and counts several from 1.
	number  int
	name    string
	address string
	// pods is the range of its pods' addresses.
	pods string
}

// several reports whether the nodes have namespaces of their own.
func (s state) several() bool { return s.Nodes > 1 }

// machines are the nodes, in the order of their numbers.
func (s state) machines() []machine {
	if !s.several() {
		return []machine{{name: s.NodeName, address: loopback, pods: podRange}}
	}
	var list []machine
	for i := 1; i <= s.Nodes; i++ {
		list = append(list, machine{i, fmt.Sprintf("%s-%d", s.NodeName, i), linkAddress(i + 1), fmt.Sprintf("10.86.%d.0/24", i)})
	}
	return list
}

// layoutOf is where this program finds the files of a node.
func (l layout) layoutOf(m machine) layout {
	if m.number == 0 {
		return l
	}
	return layout{l.path("nodes", m.name)}
}

// Node is a node of a cluster. The only node of a cluster is this machine itself. Each of several has processes, mounts, a
// network and a host name of its own, and there the cluster's directory holds the node's files alone: whatever path is
// configured for all nodes leads to a different place on each.
type Node struct {
	cluster *Cluster
	machine machine
	// layout is that of the node's files for this program.
	layout layout
}

// Nodes are the nodes of the cluster. One without kubelets has one of which only the name is of use.
func (c *Cluster) Nodes() []Node {
	var list []Node
	for _, m := range c.state.machines() {
		list = append(list, Node{c, m, c.layout.layoutOf(m)})
	}
	return list
}

// Name is the name of the node's object.
func (n Node) Name() string { return n.machine.name }

// APIServerHost is where programs and host-network pods of the node reach the API server; with several nodes, all pods and
// this machine do.
func (n Node) APIServerHost() string { return n.cluster.state.apiServerHost() }

// Component returns the control of containerd or the kubelet on this node.
func (n Node) Component(component Component) Control { return Control{n.cluster, n, component} }

// HostPath is where this program finds a file that lies below the cluster's directory on the node.
func (n Node) HostPath(path string) string {
	if rest, ok := strings.CutPrefix(path, n.cluster.layout.dir+"/"); ok {
		return n.layout.path(rest)
	}
	return path
}

// GuestDir makes a directory on the node for what runs alongside the cluster's own programs, and returns its path there.
// Down removes it.
func (n Node) GuestDir(name string) (string, error) {
	dir := filepath.Join(n.cluster.layout.dir, "guests", name)
	if err := os.MkdirAll(n.HostPath(dir), 0o700); err != nil {
		return "", fmt.Errorf("create a directory on node %s: %w", n.Name(), err)
	}
	return dir, nil
}
