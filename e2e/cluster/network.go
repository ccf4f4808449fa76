// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
)

// Several nodes are connected by a bridge, on which this machine has the first address and the API server listens. Nothing
// leads from there to other machines.
const linkNet = "10.87.0."

func linkAddress(host int) string { return fmt.Sprintf("%s%d", linkNet, host) }

// bridge is the name of the bridge, and links begins those of the nodes' links on this machine. A name has 15 bytes at most.
func (l layout) bridge() string { return l.networkName() }

func (l layout) links() string { return "cl" + strings.TrimPrefix(l.networkName(), "cleave-") + "-" }

// createBridge creates what connects several nodes.
func createBridge(ctx context.Context, l layout) error {
	// With an address of its own, the bridge does not change that when nodes come and go.
	return ip(ctx,
		"link add "+l.bridge()+" address 02:00:0a:57:00:01 type bridge",
		"address add "+linkAddress(1)+"/24 dev "+l.bridge(),
		"link set "+l.bridge()+" up")
}

// connect gives a node, whose first process it is told, its link and the routes to pods.
func (n Node) connect(ctx context.Context, pid int) error {
	l, m := n.cluster.layout, n.machine
	link := fmt.Sprintf("%s%d", l.links(), m.number)
	// The kernel may still be about to remove the link of a node that was killed.
	_ = ip(ctx, "link del "+link)
	err := ip(ctx,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", link, pid),
		"link set "+link+" master "+l.bridge()+" up",
		"route replace "+m.pods+" via "+m.address)
	if err != nil {
		return err
	}
	commands := []string{"link set lo up", "address add " + m.address + "/24 dev eth0", "link set eth0 up"}
	for _, other := range n.cluster.state.machines() {
		if other.number != m.number {
			commands = append(commands, "route add "+other.pods+" via "+other.address)
		}
	}
	return n.Inside(func() error {
		return errors.Join(ip(ctx, commands...), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
}

// removeNetwork removes the bridge, the links that the kernel has not removed with their nodes, and thereby the routes.
func removeNetwork(ctx context.Context, l layout) error {
	// Not from /sys, which shows the network that its mount was made in.
	links, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("look for links of nodes: %w", err)
	}
	bridged := false
	for _, link := range links {
		bridged = bridged || link.Name == l.bridge()
		if strings.HasPrefix(link.Name, l.links()) {
			_ = ip(ctx, "link del "+link.Name) // it may just have gone
		}
	}
	if !bridged {
		return nil
	}
	return ip(ctx, "link del "+l.bridge())
}

// ip runs commands of iproute2.
func ip(ctx context.Context, commands ...string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run ip with %q: %w: %s", commands, err, lastLines(output.Bytes(), 3))
	}
	return nil
}
