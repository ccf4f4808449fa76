// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// The node whose GPU changes its MIG mode, how long the reset of its A100s takes, and the time from label to layout that is the
// goal.
const (
	modeNode    = "bench-modes"
	modeReset   = 5 * time.Second
	modeLimit   = 8 * time.Second
	modeTimeout = time.Minute
)

// modePolicies are whole GPUs, and a layout on the first.
var modePolicies = map[string]string{
	"training":  "[{tiers: [exclusive], mig: {modeChange: whenIdle}}]",
	"inference": "[{match: {indexes: [0]}, mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}}, {tiers: [exclusive]}]",
}

// modeBench measures a change of the MIG mode on a DGX A100.
type modeBench struct {
	*bench
	node   *node.Node
	plugin *workload.Plugin
	// claim is of another GPU.
	claim *drapb.Claim
}

// measureModes measures from the node's label to the published layout and back, and Prepare of another GPU meanwhile.
func (b *bench) measureModes(ctx context.Context, r *report) error {
	ctx, cancel := context.WithTimeout(ctx, 3*modeTimeout)
	defer cancel()
	m := modeBench{bench: b}
	if err := m.start(ctx); err != nil {
		return err
	}
	defer func() { _ = m.node.Kill() }()
	before, err := m.prepared(ctx, func() bool { return false })
	if err != nil {
		return err
	}
	var meanwhile samples
	for _, step := range []struct {
		name, policy string
		partitions   int
	}{
		{"A100 with 5 s of reset: label to published layout", "inference", 7},
		{"A100 with 5 s of reset: label back to whole GPUs", "training", 0},
	} {
		start := time.Now()
		if err := (workload.Client{Kube: m.client}).LabelNode(ctx, modeNode, v1alpha1.PolicyLabel, &step.policy); err != nil {
			return err
		}
		var took time.Duration
		some, err := m.prepared(ctx, func() bool {
			if took == 0 && m.offers(ctx, step.partitions) {
				took = time.Since(start)
			}
			return took == 0
		})
		if err != nil {
			return err
		}
		meanwhile = append(meanwhile, some...)
		r.add(result{Name: step.name, Value: millis(took), Limit: millis(modeLimit), Unit: "ms", Rule: "8 s"})
	}
	r.add(result{Name: "A100: prepare p50 of another GPU meanwhile", Value: millis(meanwhile.percentile(50)),
		Limit: 1.3 * millis(before.percentile(50)), Unit: "ms", Rule: "1.3 x before"})
	r.add(result{Name: "A100: prepare p99 of another GPU meanwhile", Value: millis(meanwhile.percentile(99)), Unit: "ms"})
	return nil
}

// start starts the plugin of a DGX A100 whose GPUs are whole.
func (m *modeBench) start(ctx context.Context) error {
	dir, err := m.cluster.GuestDir("modes")
	if err != nil {
		return err
	}
	policies := filepath.Join(dir, "policies")
	if err := os.MkdirAll(policies, 0o755); err != nil {
		return fmt.Errorf("write policies: %w", err)
	}
	for name, rules := range modePolicies {
		if err := writePolicy(policies, name, rules); err != nil {
			return err
		}
	}
	m.node, m.plugin, err = m.startNode(ctx, map[string]string{v1alpha1.PolicyLabel: "training"},
		node.Options{Bin: filepath.Join(m.source, "bin"), NodeName: modeNode, Dir: dir, Flags: []string{"--policy", policies}},
		[]string{"create", "--node", "dgx-a100", "--first-minor", "8"}, []string{"fault", "--slow", modeReset.String(), "gpuReset"})
	if err != nil {
		return err
	}
	for !m.offers(ctx, 0) {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the GPUs of %s: %w", modeNode, ctx.Err())
		}
	}
	return m.allocate(ctx)
}

// allocate allocates a GPU that keeps its mode to a claim.
func (m *modeBench) allocate(ctx context.Context) error {
	devices, err := m.devices(ctx)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if index := d.Attributes["index"].IntValue; index != nil && *index == 3 {
			m.claim, err = m.bench.allocate(ctx, "modes", workload.OneGPU(modeNode, d.Name, false))
			return err
		}
	}
	return fmt.Errorf("node %s publishes no GPU 3", modeNode)
}

func (m *modeBench) devices(ctx context.Context) (all []resourceapi.Device, err error) {
	list, err := m.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + modeNode})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	for _, s := range list.Items {
		all = append(all, s.Spec.Devices...)
	}
	return all, nil
}

// offers reports whether the node publishes so many partitions, and whole all GPUs but the one that has them; none withdrawn.
func (m *modeBench) offers(ctx context.Context, partitions int) bool {
	devices, err := m.devices(ctx)
	whole, parts := 0, 0
	for _, d := range devices {
		switch kind := d.Attributes["type"].StringValue; {
		case kind == nil || len(d.Taints) > 0:
			return false
		case *kind == "mig":
			parts++
		default:
			whole++
		}
	}
	want := 8
	if partitions > 0 {
		want = 7
	}
	return err == nil && parts == partitions && whole == want
}

// prepared measures Prepare of another GPU's claim, for as many samples as are measured otherwise, and for as long as goOn says.
func (m *modeBench) prepared(ctx context.Context, goOn func() bool) (samples, error) {
	var took samples
	for more := true; more || len(took) < m.samples; more = goOn() {
		if err := timed(&took, func() error { return prepare(ctx, m.plugin, m.claim) }); err != nil {
			return nil, err
		}
		if err := unprepare(ctx, m.plugin, m.claim); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// writePolicy writes a policy of a node, in YAML.
func writePolicy(dir, name, rules string) error {
	text := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: " + rules + "\n"
	if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write policy %s: %w", name, err)
	}
	return nil
}
