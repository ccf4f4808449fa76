// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/packing"
)

func TestParse_Options(t *testing.T) {
	o, err := parse([]string{"--schedulers", "default-scheduler", "--kinds", "whole,share", "--nodes", "7"})
	if err != nil {
		t.Fatal(err)
	}
	if o.nodes != 7 || o.allocated != 10_000 || !cmp.Equal(o.schedulers, []string{defaultScheduler}) || len(o.kinds) != 2 || o.kinds[0].class != whole {
		t.Errorf("got %+v", o)
	}
	for _, args := range [][]string{{"--schedulers", "volcano"}, {"--kinds", "whole,half"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v is no error", args)
		}
	}
}

func TestReport_Goals(t *testing.T) {
	o := options{nodes: 1000, pods: 240, landing: 60, allocated: 10_000, mixedNodes: 100, mixedPods: 2000, kinds: []kind{{"whole", whole}}}
	o.schedulers = []string{defaultScheduler, cleaveScheduler}
	r := newReport(o)
	both := func(name string, first, last float64) {
		r.set(name, defaultScheduler, first)
		r.set(name, cleaveScheduler, last)
	}
	both("GPUs of 60 pods, whole", 60, 10)
	r.set("GPUs of 60 pods, whole, the fewest possible", "", 9)
	both("240 pods, whole, in a second", 6, 48)
	both("240 pods, whole, in a second, 10000 claims allocated", 5, 48)
	r.set(apiServerHeap, "", 2.5)
	r.set("only one", cleaveScheduler, 1)
	both("2000 mixed pods on 100 nodes, 80 % load: compute slices rejected, %", 0, 0)
	r.setGoals(o)
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	want := []string{
		"1000 nodes of default-scheduler cleave-scheduler ratio goal",
		"GPUs of 60 pods, whole 60.00 10.00 0.17 <= 9 MISSED",
		"GPUs of 60 pods, whole, the fewest possible 9.00 - - -",
		"240 pods, whole, in a second 6.00 48.00 8.00 >= 8 x",
		"240 pods, whole, in a second, 10000 claims allocated 5.00 48.00 9.60 >= 10 x MISSED",
		"API server, MB per node, live heap 2.50 - - <= 2.6",
		"only one - 1.00 - -",
		"2000 mixed pods on 100 nodes, 80 % load: compute slices rejected, % 0.00 0.00 - <= 0.6 x",
		"",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	missed := []string{
		"GPUs of 60 pods, whole: 10.00, want <= 9", "240 pods, whole, in a second, 10000 claims allocated: 9.60, want >= 10 x",
	}
	if diff := cmp.Diff(missed, r.missed()); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
}

// TestReport_MoreThanNothing: where the first scheduler rejects nothing, the last must not either.
func TestReport_MoreThanNothing(t *testing.T) {
	o := options{nodes: 1000, mixedNodes: 100, mixedPods: 2000, schedulers: []string{defaultScheduler, cleaveScheduler}}
	r := newReport(o)
	name := "2000 mixed pods on 100 nodes, 80 % load: compute slices rejected, %"
	r.set(name, defaultScheduler, 0)
	r.set(name, cleaveScheduler, 0.1)
	r.setGoals(o)
	if diff := cmp.Diff([]string{name + ": +Inf, want <= 0.6 x"}, r.missed()); diff != "" {
		t.Errorf("missed (-want +got):\n%s", diff)
	}
}

// TestReport_SmallRun: the goals are for 1,000 nodes.
func TestReport_SmallRun(t *testing.T) {
	o := options{nodes: 10, schedulers: []string{cleaveScheduler}}
	r := newReport(o)
	r.set(apiServerHeap, "", 100)
	r.setGoals(o)
	if missed := r.missed(); len(missed) > 0 {
		t.Errorf("missed %q", missed)
	}
}

// TestFewest_Bounds: on 100 nodes with 10 claims each, as fill allocates them, 120 small partitions fit on the 100 GPUs that have
// room for four. They are on 30 GPUs then; 18 untouched ones could hold them, which nobody wants.
func TestFewest_Bounds(t *testing.T) {
	published, err := packing.PublishedByModel(t.Context(), "hgx-h100", nil)
	if err != nil {
		t.Fatal(err)
	}
	classes, err := packing.Classes("../../../deployments/manifests")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{options: options{nodes: 100}, published: published, classes: classes}
	for _, tt := range []struct {
		kind            string
		pods, allocated int
		want            fewest
	}{
		{"1g.10gb", 60, 0, fewest{9, 9}}, {"share", 60, 0, fewest{15, 15}}, {"whole", 60, 0, fewest{60, 60}},
		{"1g.10gb", 120, 1000, fewest{18, 0}}, {"1g.10gb", 401, 1000, fewest{58, 1}}, {"3g.40gb", 100, 1000, fewest{50, 0}},
		{"whole", 240, 1000, fewest{240, 240}}, {"1g.10gb", 120, 1050, fewest{18, 0}}, {"1g.10gb", 360, 1050, fewest{52, 2}},
	} {
		k, err := findKind(tt.kind)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.fewest(t.Context(), k, tt.pods, tt.allocated)
		if err != nil || got != tt.want {
			t.Errorf("%d of %s with %d claims allocated: got %+v, %v, want %+v", tt.pods, tt.kind, tt.allocated, got, err, tt.want)
		}
	}
	k, _ := findKind("whole")
	if got, err := b.fewest(t.Context(), k, 601, 1000); err == nil {
		t.Errorf("601 GPUs of 600: got %+v", got)
	}
}

func TestLifetime_AfterFilling(t *testing.T) {
	r := packing.Request{Arrive: 3, Leave: 5}
	if got := lifetime(r, true, 10); got != 5 {
		t.Errorf("a counted pod leaves at %v, want 5", got)
	}
	if got := lifetime(r, false, 10); got != 12 {
		t.Errorf("a pod of the filling leaves at %v, want 12", got)
	}
}
