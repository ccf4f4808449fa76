// SPDX-License-Identifier: Apache-2.0

// Package recording records the history of the node of a local cluster: it puts a tap between its kubelet and its plugin, and
// watches all else where it is.
package recording

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/history/tap"
	"github.com/cleave-dra/cleave/e2e/history/watch"
	"github.com/cleave-dra/cleave/e2e/node"
)

// driver is the driver whose claims are recorded.
const driver = "gpu.cleave.dev"

// Recording is a recorder, with the tap that it needs.
type Recording struct {
	*history.Recorder
	node *node.Node
	tap  *tap.Tap
	dir  string
}

// Start restarts the plugin of the cluster's node so that it registers at a tap, and records from then on into a file.
func Start(ctx context.Context, c *cluster.Cluster, n *node.Node, file string) (*Recording, error) {
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tap") // the paths of sockets are short
	if err != nil {
		return nil, fmt.Errorf("create a directory for the tap: %w", err)
	}
	r := &Recording{node: n, dir: dir}
	if err := n.Stop(); err != nil {
		return nil, errors.Join(err, r.restore(ctx))
	}
	registry := filepath.Join(dir, "registry")
	r.tap, err = tap.Start(ctx, tap.Options{PluginRegistry: registry, KubeletRegistry: c.RegistryDir(), Dir: filepath.Join(dir, "s")})
	if err != nil {
		return nil, errors.Join(err, r.restore(ctx))
	}
	r.Recorder, err = history.Record(ctx, history.Sources{
		File: file, Node: c.NodeName(), Driver: driver,
		Of: []history.Source{
			r.tap, watch.API{Kube: client, Driver: driver, Node: c.NodeName()},
			watch.Pods{Kube: client, Node: c.NodeName()},
			watch.Runtime{Socket: c.ContainerRuntime()}, watch.Simulator{Root: n.Root(), Program: "cleave"},
		},
	})
	if err != nil {
		return nil, errors.Join(err, r.restore(ctx))
	}
	n.SetRegistry(registry)
	if err := errors.Join(n.Start(ctx), n.WaitReady(ctx)); err != nil {
		_, stopErr := r.Recorder.Stop()
		return nil, errors.Join(err, stopErr, r.restore(ctx))
	}
	return r, nil
}

// Stop ends the recording and returns all of it. The plugin is restarted so that it registers with the kubelet itself.
func (r *Recording) Stop(ctx context.Context) (history.History, error) {
	h, err := r.Recorder.Stop()
	return h, errors.Join(err, r.restore(ctx))
}

// restore starts the plugin without the tap.
func (r *Recording) restore(ctx context.Context) error {
	err := r.node.Stop()
	if r.tap != nil {
		r.tap.Close()
	}
	r.node.SetRegistry("")
	return errors.Join(err, os.RemoveAll(r.dir), r.node.Start(ctx), r.node.WaitReady(ctx))
}
