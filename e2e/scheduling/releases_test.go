// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// The feature gates that decide what an API server keeps of devices, and a scheduler counts.
const (
	gateCounters = "DRAPartitionableDevices"
	gateShares   = "DRAConsumableCapacity"
)

// releaseRows are what is tried: releases of Kubernetes that can be run, each by default and with its gates the other way.
var releaseRows = []struct {
	version string
	gates   map[string]bool
}{
	{"1.37.2", nil},
	{"1.37.2", map[string]bool{gateCounters: false}},
	{"1.37.2", map[string]bool{gateShares: false}},
	{"1.37.2", map[string]bool{gateCounters: false, gateShares: false}},
	{"1.36.4", nil},
	{"1.36.4", map[string]bool{gateCounters: false}},
	{"1.36.4", map[string]bool{gateShares: false}},
	{"1.36.4", map[string]bool{gateCounters: false, gateShares: false}},
	{"1.35.4", nil},
	{"1.35.4", map[string]bool{gateCounters: true}},
	{"1.35.4", map[string]bool{gateCounters: true, gateShares: true}},
	{"1.34.4", nil},
	{"1.34.4", map[string]bool{gateCounters: true}},
	{"1.34.4", map[string]bool{gateCounters: true, gateShares: true}},
}

// releasePolicies are the columns.
var releasePolicies = []struct{ name, title, rules string }{
	{"all", "every tier (no policy)", ""},
	{"layout", "a layout", `{tiers: [mig], mig: {layout: {"1g.10gb": 7}}}`},
	{"slices", "time slices alone", `{tiers: [timeSlice]}`},
}

// tiers are the classes that claims request, and what the devices of each are called in the table.
var tiers = []struct {
	class  string
	offers gpu.Type
	word   string
}{
	{"gpu.cleave.dev", gpu.TypeGPU, "whole GPUs"},
	{"mig.cleave.dev", gpu.TypeMIG, "partitions"},
	{"timeslice.cleave.dev", gpu.TypeTimeSlice, "time slices"},
	{"mps.cleave.dev", gpu.TypeMPS, "MPS shares"},
}

// TestReleases has the plugin publish on each release of Kubernetes, with feature gates on and off, and that release's kube-scheduler
// place pods of all tiers: whatever is published can be allocated, and nothing is allocated twice. What each GPU offers is the table
// of docs/install.md, which -update writes.
func TestReleases(t *testing.T) {
	if os.Getenv("CLEAVE_RELEASES") != "1" {
		t.Skip("CLEAVE_RELEASES=1 runs this, as root; it builds the control planes of four releases (make test-releases)")
	}
	lines := []string{"| Kubernetes | feature gates |", "| --- | --- |"}
	for _, p := range releasePolicies {
		lines[0] += " " + p.title + " |"
		lines[1] += " --- |"
	}
	for _, row := range releaseRows {
		gates := gatesText(row.gates)
		line := fmt.Sprintf("| %s | %s |", row.version, gates)
		for _, p := range releasePolicies {
			t.Run(strings.ReplaceAll(row.version+"/"+gates, " ", "-")+"/"+p.name, func(t *testing.T) {
				line += " " + offered(t, row.version, row.gates, p.rules) + " |"
			})
		}
		lines = append(lines, line)
	}
	if !t.Failed() {
		checkTable(t, filepath.Join("..", "..", "docs", "install.md"), strings.Join(lines, "\n")+"\n")
	}
}

func gatesText(gates map[string]bool) string {
	if len(gates) == 0 {
		return "by default"
	}
	var said []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		said = append(said, fmt.Sprintf("`%s=%t`", name, gates[name]))
	}
	return strings.Join(said, " ")
}

// offered is what can be had of a node under a policy, in words.
func offered(t *testing.T, version string, gates map[string]bool, rules string) string {
	t.Helper()
	b := newBedWith(t, cluster.Options{Version: version, FeatureGates: gates})
	truth := publishable(b, "node-1")
	b.addNode("node-1")
	published := publishedOn(b, "node-1", rules)
	b.startKubeScheduler(version, gates)
	got := map[string]bool{}
	for _, batch := range []int{2, 8} { // at first so few that there is room for all, then more than there is
		for _, tier := range tiers {
			b.addPods(fmt.Sprintf("%s-%d", tier.offers, batch), tier.class, batch, func(p *corev1.Pod) { p.Spec.SchedulerName = "" })
		}
		waitTried(b)
		results := b.results()
		if over := packing.OverAllocated(truth, results); len(over) > 0 {
			t.Errorf("more is allocated than a GPU has: %v", over)
		}
		if batch > 2 {
			break
		}
		claims, err := b.kube.ResourceV1().ResourceClaims(namespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for i := range claims.Items {
			if claims.Items[i].Status.Allocation != nil {
				got[claims.Items[i].Spec.Devices.Requests[0].Exactly.DeviceClassName] = true
			}
		}
	}
	var words []string
	for _, tier := range tiers {
		if got[tier.class] {
			words = append(words, tier.word)
		}
		if got[tier.class] != published[tier.offers] {
			t.Errorf("devices of type %s are published: %t; they were allocated: %t", tier.offers, published[tier.offers], got[tier.class])
		}
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

// publishable is all that a node of 8 H100 can offer, as a cluster that counts everything gets it.
func publishable(b *bed, name string) []*resourceapi.ResourceSlice {
	b.t.Helper()
	list := slicesOf(b, name)
	var all []*resourceapi.ResourceSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// publishedOn runs the plugin on a simulated node, and returns the types of devices that it publishes. It ends with the test.
func publishedOn(b *bed, name, rules string) map[gpu.Type]bool {
	b.t.Helper()
	dir, err := os.MkdirTemp("/tmp", "n") // t.TempDir is too long for sockets
	must(b.t, err)
	b.t.Cleanup(func() { must(b.t, os.RemoveAll(dir)) })
	opts := node.Options{Cluster: b.control, Bin: bin(), Model: "hgx-h100", NodeName: name, Dir: dir}
	if rules != "" {
		policy := filepath.Join(dir, "policy.yaml")
		must(b.t, os.WriteFile(policy, fmt.Appendf(nil, "apiVersion: %s/v1alpha1\nkind: NodePolicy\nmetadata: {name: default}\nrules: [%s]\n",
			v1alpha1.Group, rules), 0o600))
		opts.Flags = []string{"--policy", policy}
	}
	n, err := node.Run(b.t.Context(), opts)
	must(b.t, err)
	b.t.Cleanup(func() {
		must(b.t, n.Kill())
		must(b.t, n.Supervisor.Stop())
	})
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	var types map[gpu.Type]bool
	must(b.t, workload.Until(ctx, "the node's ResourceSlices", func(ctx context.Context) (bool, string, error) {
		list, err := b.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		types = map[gpu.Type]bool{}
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				types[gpu.Type(*d.Attributes["type"].StringValue)] = true
			}
		}
		return err == nil && len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount, n.LogTail(5), err
	}))
	b.t.Logf("published: %v", slices.Sorted(maps.Keys(types)))
	return types
}

// waitTried waits until the scheduler has tried all pods.
func waitTried(b *bed) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, "the scheduler to have tried all pods", func(ctx context.Context) (bool, string, error) {
		pods, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Spec.NodeName == "" && !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
			}) {
				return false, p.Name + " was not tried", nil
			}
		}
		return true, "", nil
	})
	if err != nil {
		b.t.Fatalf("%v; the scheduler's log ends with:\n%s", err, b.scheduler.LogTail(20))
	}
}

// checkTable compares the table below its mark in a document, or writes it.
func checkTable(t *testing.T, file, table string) {
	t.Helper()
	const begin, end = "<!-- releases: make test-releases -->\n", "<!-- end of releases -->\n"
	data, err := os.ReadFile(file)
	must(t, err)
	before, rest, found := strings.Cut(string(data), begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	if *golden.Update {
		must(t, os.WriteFile(file, []byte(before+begin+table+end+after), 0o644))
		return
	}
	if diff := cmp.Diff(old, table); diff != "" {
		t.Errorf("%s (-want +got; -update writes it):\n%s", file, diff)
	}
}
