// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Up starts a cluster and returns when pods can run on it. It first installs
// and builds what is missing, and takes down what an earlier cluster left in
// the directory. Its processes go on when this program ends. When Up fails, it
// stops what it started and leaves the logs.
func Up(ctx context.Context, opts Options) (*Cluster, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := requireRoot(); err != nil {
		return nil, err
	}
	if otherKubelet() {
		return nil, errors.New("start a cluster: another kubelet runs on this machine and the two would take each other's device plugin " +
			"socket; stop it first")
	}
	if err := install(ctx, o); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, o.Dir, o.Output)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := (startup{c, o}).run(ctx); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // what the components say of it does not matter
		}
		// The clean-up must run also when ctx has ended.
		err = errors.Join(err, stopAll(context.WithoutCancel(ctx), c.layout))
		return nil, fmt.Errorf("start Kubernetes %s: %w\nIts processes are stopped; the logs stay in %s until the next start or stop", o.Version,
			err, filepath.Dir(c.layout.logFile(Etcd)))
	}
	return c, nil
}

func requireRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("run a local cluster: it needs root, for containers and mounts; run it as root")
	}
	return nil
}

// prepare clears the directory and writes all that the components read.
func prepare(ctx context.Context, o Options) (*Cluster, error) {
	l := layout{o.Dir}
	if err := wipe(ctx, l); err != nil {
		return nil, err
	}
	h, err := inspectHost()
	if err != nil {
		return nil, err
	}
	h.beforeKubelets()
	p, err := choosePorts(ctx)
	if err != nil {
		return nil, err
	}
	s := state{
		Version: o.Version, BinDir: o.BinDir, NodeName: o.NodeName, Nodes: o.Nodes,
		FeatureGates: o.FeatureGates, Runtime: o.RuntimeConfig, Environment: o.Environment, ControlPlane: o.ControlPlane, NRI: o.NRI,
		Ports: p, Host: h,
	}
	s.Host.PodGroups = true
	for _, m := range s.machines() {
		if err := makePodGroup(l.podGroupOf(m)); err != nil {
			fmt.Fprintf(o.Output, "pods get no control groups of their own, and tests of their processes are skipped: %s\n", err)
			s.Host.PodGroups = false
			break
		}
	}
	// The sockets and keys below are nobody else's business.
	if err := os.Chmod(l.dir, 0o711); err != nil {
		return nil, fmt.Errorf("close the cluster directory to others: %w", err)
	}
	if err := makeDirectories(l.directories(), l.path("pki"), l.path("etcd")); err != nil {
		return nil, err
	}
	for _, m := range s.machines() {
		if err := prepareNode(l.layoutOf(m)); err != nil {
			return nil, err
		}
	}
	if err := writeState(l, s); err != nil {
		return nil, err
	}
	if err := writePKI(l, s); err != nil {
		return nil, err
	}
	for _, m := range s.machines() {
		if err := writeNodeConfiguration(l, s, m); err != nil {
			return nil, err
		}
	}
	if s.several() {
		if err := createBridge(ctx, l); err != nil {
			return nil, fmt.Errorf("create the network of the nodes: %w", err)
		}
	}
	return &Cluster{l, s}, nil
}

// makeDirectories makes directories of which some are nobody else's business.
func makeDirectories(list []string, private ...string) error {
	for _, directory := range list {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return fmt.Errorf("create the directory %s: %w", directory, err)
		}
	}
	for _, directory := range private {
		if err := os.Chmod(directory, 0o700); err != nil {
			return fmt.Errorf("close the directory %s to others: %w", directory, err)
		}
	}
	return nil
}

func prepareNode(l layout) error {
	if err := makeDirectories(l.nodeDirectories(), l.path("pki"), l.path("s")); err != nil {
		return err
	}
	// A pod's root file system lies below; in a user namespace its init is a
	// user who has to get there.
	for _, directory := range []string{l.dir, l.path("run")} {
		if err := os.Chmod(directory, 0o711); err != nil {
			return fmt.Errorf("close the directory %s to others: %w", directory, err)
		}
	}
	// On nodes it lies below /run, in memory: what claims cost there is not to be what a disk costs.
	return mountMemory(l.cdiDir())
}

// startup is the first start of a cluster.
type startup struct {
	*Cluster
	opts Options
}

// run brings up the components, those that do not need each other at once.
func (s startup) run(ctx context.Context) error {
	began := time.Now()
	if s.state.ControlPlane {
		if err := s.startAll(ctx, s.state.components()...); err != nil {
			return err
		}
		step(s.opts.Output, began, "API server is ready")
		return nil
	}
	err := inParallel(ctx,
		func(ctx context.Context) error { return s.startAll(ctx, Etcd, APIServer) },
		func(ctx context.Context) error {
			for _, n := range s.Nodes() {
				if err := n.Boot(ctx); err != nil {
					return err
				}
				if err := n.Component(Containerd).Start(ctx); err != nil {
					return err
				}
			}
			return s.importBasic(ctx)
		})
	if err != nil {
		return err
	}
	step(s.opts.Output, began, "API server and container runtime are ready")
	rest := []func(context.Context) error{
		func(ctx context.Context) error {
			if err := s.startAll(ctx, ControllerManager); err != nil {
				return err
			}
			return s.waitServiceAccount(ctx)
		},
		func(ctx context.Context) error { return s.startAll(ctx, Scheduler) },
	}
	for _, n := range s.Nodes() {
		if err := s.createNode(ctx, n.machine); err != nil {
			return err
		}
		rest = append(rest, n.Component(Kubelet).Start)
	}
	if err := inParallel(ctx, rest...); err != nil {
		return err
	}
	for _, n := range s.Nodes() {
		step(s.opts.Output, began, "node "+n.Name()+" is Ready")
	}
	return nil
}

func step(out io.Writer, began time.Time, what string) {
	fmt.Fprintf(out, "%s (%.1f s)\n", what, time.Since(began).Seconds())
}

// startAll starts components one after the other, each when the one before is
// ready.
func (s startup) startAll(ctx context.Context, components ...Component) error {
	for _, component := range components {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.Component(component).Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// inParallel runs functions at once and waits for all. The first that fails
// ends the others, and its error is the one returned.
func inParallel(ctx context.Context, functions ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		once  sync.Once
		first error
	)
	for _, f := range functions {
		group.Go(func() {
			if err := f(ctx); err != nil {
				once.Do(func() { first = err; cancel() })
			}
		})
	}
	group.Wait()
	return first
}

// createNode creates a node before its kubelet does: with an address that only
// this machine reaches, so that nothing of the cluster is reachable from elsewhere,
// and without the taint that waits for a cloud to fill in the address.
func (s startup) createNode(ctx context.Context, m machine) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: s.opts.NodeLabels}}
	node, err = client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the node: %w", err)
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: m.address},
		{Type: corev1.NodeHostName, Address: m.name},
	}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("give the node its address: %w", err)
	}
	return nil
}

// waitServiceAccount waits for the default service account: no pod can be made
// before it is there.
func (s startup) waitServiceAccount(ctx context.Context) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	d, err := findDaemon(s.layout, ControllerManager)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err = poll(ctx, 2*pollInterval, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}
