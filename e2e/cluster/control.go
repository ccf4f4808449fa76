// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stopGrace is how long a component may take to end when asked to.
const stopGrace = 30 * time.Second

// Status is how a component is.
type Status struct {
	Component Component
	PID       int
	// Problem is nil when the component runs and is ready.
	Problem error
}

// Status asks every component how it is.
func (c *Cluster) Status(ctx context.Context) ([]Status, error) {
	client, err := c.healthClient()
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, component := range Components() {
		status := Status{Component: component}
		d, err := findDaemon(c.layout, component)
		switch {
		case errors.Is(err, os.ErrNotExist):
			status.Problem = errors.New("was not started")
		case err != nil:
			status.Problem = err
		case !d.process.alive():
			status.Problem = errors.New("has ended")
		default:
			status.PID, status.Problem = d.process.pid, c.health(ctx, client, component)
		}
		list = append(list, status)
	}
	return list, nil
}

// Healthy reports whether all components run and the node is Ready.
func (c *Cluster) Healthy(ctx context.Context) error {
	list, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Problem != nil {
			return fmt.Errorf("%s: %w", s.Component, s.Problem)
		}
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, c.NodeName(), metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the node: %w", err)
	}
	return readyNode(node)
}

// Stop ends a component with a signal (SIGTERM lets it finish, SIGKILL does
// not) and waits until it is gone. What the component has started, such as
// containers, goes on. It is no error when the component does not run.
func (c *Cluster) Stop(ctx context.Context, component Component, sig syscall.Signal) error {
	d, err := findDaemon(c.layout, component)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.process.signal(sig); err != nil {
		return fmt.Errorf("stop %s: %w", component, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if left := waitGone(ctx, []identity{d.process}); len(left) > 0 {
		return fmt.Errorf("stop %s: process %d does not end on %s: %w", component, d.process.pid, sig, ctx.Err())
	}
	return nil
}

// Start starts a component that does not run and waits until it is ready; for
// the kubelet, until its node is Ready too.
func (c *Cluster) Start(ctx context.Context, component Component) error {
	if d, err := findDaemon(c.layout, component); err == nil && d.process.alive() {
		return fmt.Errorf("start %s: it runs already, as process %d", component, d.process.pid)
	}
	began := time.Now()
	d, err := startDaemon(c.layout, c.state, component)
	if err != nil {
		return err
	}
	if err := c.wait(ctx, d); err != nil || component != Kubelet {
		return err
	}
	return c.waitNode(ctx, began)
}

// Restart is Stop and Start.
func (c *Cluster) Restart(ctx context.Context, component Component, sig syscall.Signal) error {
	if err := c.Stop(ctx, component, sig); err != nil {
		return err
	}
	return c.Start(ctx, component)
}

// StopKubelet is Stop for the kubelet.
func (c *Cluster) StopKubelet(ctx context.Context, sig syscall.Signal) error {
	return c.Stop(ctx, Kubelet, sig)
}

// StartKubelet is Start for the kubelet.
func (c *Cluster) StartKubelet(ctx context.Context) error { return c.Start(ctx, Kubelet) }

// RestartKubelet is Restart for the kubelet.
func (c *Cluster) RestartKubelet(ctx context.Context, sig syscall.Signal) error {
	return c.Restart(ctx, Kubelet, sig)
}
