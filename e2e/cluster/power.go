// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// nodeComponents are those that run on the node itself, in the order in which they start.
var nodeComponents = []Component{Containerd, Kubelet}

// PowerOff ends all that runs on the node as a power failure does: the kubelet, containerd and the containers, with what
// a node keeps in memory, which more directories may hold. The control plane and this program go on. Boot starts the node
// again.
func PowerOff(ctx context.Context, c *Cluster, memory ...string) error {
	if c.state.several() {
		return errors.New("power off the node: there are several, each with a Kill of its own")
	}
	l := c.layout
	ids := containerIDs(l)
	for _, component := range slices.Backward(nodeComponents) {
		if err := c.Component(component).Stop(ctx, syscall.SIGKILL); err != nil {
			return err
		}
	}
	kept, err := controlPlane(c)
	if err != nil {
		return err
	}
	if err := killOwned(ctx, l, kept...); err != nil {
		return err
	}
	for _, dir := range append([]string{l.path("run"), l.path("kubelet", "pods")}, memory...) {
		if err := unmountBelow(dir); err != nil {
			return err
		}
	}
	for _, dir := range append([]string{l.path("run"), l.path("s"), l.cdiDir()}, memory...) {
		if err := empty(dir); err != nil {
			return err
		}
	}
	return removeGroups(ctx, ids, []string{filepath.Join(l.podGroup(), "kubepods")})
}

// Boot starts the node after PowerOff.
func Boot(ctx context.Context, c *Cluster) error {
	for _, component := range nodeComponents {
		if err := c.Component(component).Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// controlPlane are the processes of the components that do not run on the node.
func controlPlane(c *Cluster) ([]identity, error) {
	var list []identity
	for _, component := range c.state.components() {
		if slices.Contains(nodeComponents, component) {
			continue
		}
		d, err := findDaemon(c.layout, component)
		if err != nil {
			return nil, err
		}
		list = append(list, d.process)
	}
	return list, nil
}

// empty removes what is in a directory.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("empty %s: %w", dir, err)
		}
	}
	return nil
}
