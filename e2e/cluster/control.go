// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// stopGrace is how long a component may take to end when asked to.
const stopGrace = 2 * time.Minute

// Status is how a component is.
type Status struct {
	Component Component
	// Name is that of the component, and where several nodes have it, of the node.
	Name string
	PID  int
	// Problem is nil when the component runs and is ready.
	Problem error
	LogFile string
}

// Status asks every component how it is.
func (c *Cluster) Status(ctx context.Context) ([]Status, error) {
	client, err := healthClient(c.layout)
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, control := range controls(c) {
		pid, problem := control.status(ctx, client)
		list = append(list, Status{control.component, control.String(), pid, problem, control.files().logFile(control.component)})
	}
	return list, nil
}

// controls are those of all processes, in the order in which they start.
func controls(c *Cluster) []Control {
	var list []Control
	for _, component := range c.state.components() {
		for _, n := range c.Nodes() {
			if component.onNode() || n.machine.number <= 1 {
				list = append(list, n.Component(component))
			}
		}
	}
	return list
}

// Healthy reports whether all components run and the nodes, if it has any, are Ready.
func (c *Cluster) Healthy(ctx context.Context) error {
	list, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s.Problem != nil {
			return fmt.Errorf("%s: %w", s.Name, s.Problem)
		}
	}
	if c.state.ControlPlane {
		return nil
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		node, err := client.CoreV1().Nodes().Get(ctx, n.Name(), metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get the node: %w", err)
		}
		if err := readyNode(node); err != nil {
			return err
		}
	}
	return nil
}

// Control starts and stops one component of a cluster.
type Control struct {
	cluster   *Cluster
	node      Node
	component Component
}

// Component returns the control of a component; of one that several nodes have, on the first.
func (c *Cluster) Component(component Component) Control { return c.Nodes()[0].Component(component) }

func (c Control) String() string {
	if c.component.onNode() && c.cluster.state.several() {
		return string(c.component) + " on " + c.node.Name()
	}
	return string(c.component)
}

// files is where the component's log is, and its process is written down.
func (c Control) files() layout {
	if c.component.onNode() {
		return c.node.layout
	}
	return c.cluster.layout
}

// status is the component's process, if it runs, and why it is not ready.
func (c Control) status(ctx context.Context, client *http.Client) (pid int, problem error) {
	d, err := findDaemon(c.files(), c.component)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, errors.New("was not started")
	case err != nil:
		return 0, err
	case !d.process.alive():
		return 0, errors.New("has ended")
	default:
		return d.process.pid, c.health(ctx, client)
	}
}

// Stop ends the component with a signal (SIGTERM lets it finish, SIGKILL does
// not) and waits until it is gone. What the component has started, such as
// containers, goes on. It is no error when the component does not run.
func (c Control) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := c.Signal(sig); err != nil {
		return err
	}
	d, err := findDaemon(c.files(), c.component)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if left := waitGone(ctx, []identity{d.process}); len(left) > 0 {
		return fmt.Errorf("stop %s: process %d does not end on %s: %w", c, d.process.pid, sig, ctx.Err())
	}
	return nil
}

// Signal sends a signal to the component, such as SIGSTOP and SIGCONT, and waits for nothing. It is no error when the
// component does not run.
func (c Control) Signal(sig syscall.Signal) error {
	d, err := findDaemon(c.files(), c.component)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.process.signal(sig); err != nil {
		return fmt.Errorf("signal %s: %w", c, err)
	}
	return nil
}

// Start starts the component, which must not run, and waits until it is ready; for
// the kubelet, until its node is Ready too.
func (c Control) Start(ctx context.Context) error {
	if d, err := findDaemon(c.files(), c.component); err == nil && d.process.alive() {
		return fmt.Errorf("start %s: it runs already, as process %d", c, d.process.pid)
	}
	began := time.Now()
	d, err := c.startDaemon()
	if err != nil {
		return err
	}
	if err := c.wait(ctx, d); err != nil || c.component != Kubelet {
		return err
	}
	return c.waitNode(ctx, d, began)
}

// Restart is Stop and Start.
func (c Control) Restart(ctx context.Context, sig syscall.Signal) error {
	if err := c.Stop(ctx, sig); err != nil {
		return err
	}
	return c.Start(ctx)
}
