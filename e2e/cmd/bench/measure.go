// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// bench is one run.
type bench struct {
	options
	cluster *cluster.Cluster
	node    *node.Node
	client  kubernetes.Interface
	plugin  *workload.Plugin
	devices []string
	claims  []*drapb.Claim // one per device
	// trace is where the simulated library writes a line per NVML call.
	trace string
	// partitions are the devices of the smallest profile, by GPU.
	partitions [][]string
}

func (b *bench) measure(ctx context.Context) (r *report, err error) {
	r = &report{Started: time.Now().UTC()}
	if err := b.connect(); err != nil {
		return nil, err
	}
	if err := makeNamespace(ctx, b.client); err != nil {
		return nil, err
	}
	if err := b.measureStart(ctx, r); err != nil {
		return nil, err
	}
	defer func() { _ = b.node.Kill() }()
	if b.plugin, err = workload.Dial(b.node.Socket()); err != nil {
		return nil, err
	}
	defer func() { _ = b.plugin.Close() }()
	if b.usage {
		return r, (&usageBench{bench: b}).measure(ctx, r)
	}
	if b.compare != "" {
		return r, (&comparison{bench: b}).measure(ctx, r)
	}
	for i, device := range b.devices {
		claim, err := b.makeClaim(ctx, fmt.Sprintf("gpu-%d", i), device, false)
		if err != nil {
			return nil, err
		}
		b.claims = append(b.claims, claim)
	}
	if err := b.measureClaims(ctx, r); err != nil {
		return nil, err
	}
	return r, b.measureModes(ctx, r)
}

// startNode starts the plugin of another node, which gets no pods, once nvml-sim has run with each of some arguments.
func (b *bench) startNode(ctx context.Context, labels map[string]string, o node.Options, sims ...[]string) (*node.Node, *workload.Plugin,
	error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.NodeName, Labels: labels}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if _, err := b.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return nil, nil, fmt.Errorf("create node %s: %w", o.NodeName, err)
	}
	o.Cluster, o.Quiet = b.cluster, true
	n := node.Attach(o)
	for _, args := range sims {
		if _, err := n.Sim(ctx, args...); err != nil {
			return n, nil, err
		}
	}
	if err := n.Start(ctx); err != nil {
		return n, nil, err
	}
	if err := n.WaitReady(ctx); err != nil {
		return n, nil, fmt.Errorf("%w\nthe plugin's log ends with:\n%s", err, n.LogTail(5))
	}
	plugin, err := workload.Dial(n.Socket())
	return n, plugin, err
}

// connect creates a client like the plugin's: unthrottled and speaking protobuf.
func (b *bench) connect() error {
	config, err := b.cluster.RESTConfig()
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	b.client, err = kubernetes.NewForConfig(config)
	return err
}

// measureStart starts the plugin and times it until its slices are there, then waits for it to be idle.
func (b *bench) measureStart(ctx context.Context, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	watch, err := b.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch ResourceSlices: %w", err)
	}
	defer watch.Stop()
	start := time.Now()
	if err := b.node.Start(ctx); err != nil {
		return err
	}
	for seen, want := int64(0), int64(1); seen < want; seen++ {
		select {
		case event := <-watch.ResultChan():
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok {
				return fmt.Errorf("watch ResourceSlices: %v", event.Object)
			}
			want = slice.Spec.Pool.ResourceSliceCount
		case <-ctx.Done():
			return fmt.Errorf("wait for ResourceSlices: %w", ctx.Err())
		}
	}
	r.add(result{Name: "start to ResourceSlices created", Value: millis(time.Since(start)), Limit: 1300, Unit: "ms",
		Rule: "1 s of it is the informer's first sync"})
	if err := b.node.WaitReady(ctx); err != nil {
		return err
	}
	list, err := b.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ResourceSlices: %w", err)
	}
	if err := b.sortDevices(list); err != nil {
		return err
	}
	return b.measureMemory(ctx, r)
}

// measureClaims measures floor and operations concurrently, so that both see the same machine.
func (b *bench) measureClaims(ctx context.Context, r *report) error {
	idle, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	floor := idle.floor.percentile(50)
	r.add(result{Name: "floor p50: read claim + file + empty call", Value: millis(floor), Unit: "ms"})
	r.add(result{Name: "floor p99", Value: millis(idle.floor.percentile(99)), Unit: "ms"})
	r.addSingles("", idle, 1.5*millis(floor), "1.5 x floor p50")

	together, err := b.together(ctx, b.claims, b.rounds)
	if err != nil {
		return err
	}
	alone := millis(together.alone.percentile(50))
	r.add(result{Name: "one floor between rounds of 8 at once: p50", Value: alone, Unit: "ms"})
	r.add(result{Name: "8 floors at once: p99", Value: millis(together.floor.percentile(99)), Unit: "ms"})
	r.add(result{Name: "8 claims at once: prepare p50", Value: millis(together.prepare.percentile(50)), Unit: "ms"})
	r.add(result{Name: "8 claims at once: prepare p99", Value: millis(together.prepare.percentile(99)), Limit: 5 * alone, Unit: "ms",
		Rule: "5 x floor between rounds"})
	r.add(result{Name: "8 claims at once: unprepare p99", Value: millis(together.unprepare.percentile(99)), Limit: 5 * alone, Unit: "ms",
		Rule: "5 x floor between rounds"})

	if err := (&processBench{podClaims{bench: b}}).measure(ctx, r); err != nil {
		return err
	}
	if err := (partitionBench{b}).measure(ctx, r, floor); err != nil {
		return err
	}
	if err := (shareBench{b}).measure(ctx, r); err != nil {
		return err
	}
	if err := (partitionShareBench{b}).measure(ctx, r); err != nil {
		return err
	}
	if err := (&usageBench{bench: b}).measure(ctx, r); err != nil {
		return err
	}
	if err := b.load(ctx); err != nil {
		return err
	}
	loaded, err := b.singles(ctx, b.claims)
	if err != nil {
		return err
	}
	drift, name, rule := loaded.drift(idle), fmt.Sprintf("with %d prepared: ", b.options.claims), "1.3 x with none, by the floor"
	r.addDrifted(name+"prepare p50", loaded.prepare, idle.prepare, drift, rule)
	r.addDrifted(name+"unprepare p50", loaded.unprepare, idle.unprepare, drift, rule)
	return nil
}

// operations are what was measured of each.
type operations struct {
	alone, floor, prepare, unprepare samples
}

// drift is how much slower the machine is than before, by the floor.
func (o operations) drift(before operations) float64 {
	return float64(o.floor.percentile(50)) / float64(before.floor.percentile(50))
}

// timed appends how long an operation took.
func timed(to *samples, run func() error) error {
	start := time.Now()
	err := run()
	*to = append(*to, time.Since(start))
	return err
}

// singles measures one claim at a time, the floor before each. The first tenth warms up and does not count.
func (b *bench) singles(ctx context.Context, claims []*drapb.Claim) (operations, error) {
	var o operations
	warm := b.samples / 10
	for i := range b.samples + warm {
		if i == warm {
			o = operations{}
		}
		claim := claims[i%len(claims)]
		if err := timed(&o.floor, func() error { return b.floor(ctx, claim) }); err != nil {
			return o, err
		}
		if err := timed(&o.prepare, func() error { return prepare(ctx, b.plugin, claim) }); err != nil {
			return o, err
		}
		if err := timed(&o.unprepare, func() error { return unprepare(ctx, b.plugin, claim) }); err != nil {
			return o, err
		}
	}
	return o, nil
}

// floor does what every driver has to: read the claim, record it, answer a call.
func (b *bench) floor(ctx context.Context, claim *drapb.Claim) error {
	if _, err := b.client.ResourceV1().ResourceClaims(namespace).Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read claim %s: %w", claim.Name, err)
	}
	path := filepath.Join(b.node.Records(), "..", "bench-floor-"+claim.Name)
	if err := (store.Disk{}).WriteFile(path, make([]byte, recordSize)); err != nil {
		return fmt.Errorf("write the floor's file: %w", err)
	}
	_, err := b.plugin.API.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
	return err
}

// floorOf is floor in the form of prepare and unprepare.
func (b *bench) floorOf(ctx context.Context, _ *workload.Plugin, claim *drapb.Claim) error {
	return b.floor(ctx, claim)
}

// recordSize is what the record of a claim with one GPU takes, in bytes.
const recordSize = 420

// together measures all claims at once.
func (b *bench) together(ctx context.Context, claims []*drapb.Claim, rounds int) (operations, error) {
	var o operations
	for i := range rounds {
		// One floor alone in each round: a machine that others use is not the same from one second to the next.
		if err := timed(&o.alone, func() error { return b.floor(ctx, claims[i%len(claims)]) }); err != nil {
			return o, err
		}
		for _, step := range []struct {
			to  *samples
			run operation
		}{{&o.floor, b.floorOf}, {&o.prepare, prepare}, {&o.unprepare, unprepare}} {
			took, err := b.each(ctx, claims, step.run)
			if err != nil {
				return o, err
			}
			*step.to = append(*step.to, took...)
		}
	}
	return o, nil
}

// operation is one that is measured.
type operation func(context.Context, *workload.Plugin, *drapb.Claim) error

// each runs an operation on all claims at once, and returns how long each took.
func (b *bench) each(ctx context.Context, claims []*drapb.Claim, run operation) (samples, error) {
	took, errs := make(samples, len(claims)), make([]error, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		wg.Go(func() {
			start := time.Now()
			errs[i] = run(ctx, b.plugin, c)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

// load prepares claims that stay.
func (b *bench) load(ctx context.Context) error {
	for i := range b.options.claims {
		claim, err := b.makeClaim(ctx, fmt.Sprintf("admin-%d", i), b.devices[i%len(b.devices)], true)
		if err != nil {
			return err
		}
		if err := prepare(ctx, b.plugin, claim); err != nil {
			return err
		}
	}
	return nil
}
