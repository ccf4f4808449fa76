// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/migrate"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// policyBed is a plugin on a simulated node with two A30, with policies in a folder.
type policyBed struct {
	*service
	t        *testing.T
	hw       *hardware
	recorder *record.FakeRecorder
	held     []*records.Record
}

// newPolicyBed starts one whose plugin folder is an earlier one's, or a new one where that is empty.
func newPolicyBed(t *testing.T, policies, plugins string) *policyBed {
	t.Helper()
	b := &policyBed{t: t, recorder: record.NewFakeRecorder(100), hw: simulatedHardware(t)}
	b.service = &service{
		config:  Config{NodeName: "node-1", DriverName: "gpu.cleave.dev", PluginsDir: plugins, PolicyFile: policies},
		metrics: newMetrics(), events: &nodeEvents{recorder: b.recorder, node: &corev1.ObjectReference{}},
		around: newSurroundings(fake.NewClientset(), "gpu.cleave.dev", "node-1", func() {}),
	}
	b.ready.driver(nil)
	b.ready.published(nil)
	if err := os.MkdirAll(b.config.pluginDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	b.openPolicy(t.Context())
	b.hw.held = func() []*records.Record { return b.held }
	b.hw.policy = b.policy.rules()
	b.hw.offer(nil)
	return b
}

// label sets the node's.
func (b *policyBed) label(value string) {
	b.t.Helper()
	if err := b.around.object.Add(nodeObject(value)); err != nil {
		b.t.Fatal(err)
	}
}

// write changes a policy file; one without text goes.
func (b *policyBed) write(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.config.PolicyFile, name)
	err := os.Remove(path)
	if text != "" {
		err = os.WriteFile(path, []byte(policyHead+text), 0o600)
	}
	if err != nil && !os.IsNotExist(err) {
		b.t.Fatal(err)
	}
}

const policyHead = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"

// looked is what is seen of a look at the policy.
type looked struct {
	// Policy in force, by the metric.
	Policy  string
	Invalid bool
	// Events, each up to its first word after the reason.
	Events []string
	// Ready is empty or why not.
	Ready string
	// Kept is the name of the policy that a restart goes on with.
	Kept string
}

// look looks at the policy and returns what is seen.
func (b *policyBed) look(again bool) looked {
	b.t.Helper()
	b.lookAtPolicy(b.t.Context(), b.hw, again)
	b.hw.offer(nil)
	got := looked{Invalid: gauge(b.t, b.metrics.policyInvalid) == 1, Ready: text(b.ready.err())}
	got.Policy = labelOf(b.t, b.metrics.policy, "policy")
	for len(b.recorder.Events) > 0 {
		got.Events = append(got.Events, <-b.recorder.Events)
	}
	if data, err := os.ReadFile(filepath.Join(b.config.pluginDir(), "policy.json")); err == nil {
		_, rest, _ := strings.Cut(string(data), `"name":"`)
		got.Kept, _, _ = strings.Cut(rest, `"`)
	}
	return got
}

// gauge is the value of a metric.
func gauge(t *testing.T, m prometheus.Collector) float64 {
	t.Helper()
	values := gather(t, m)
	if len(values) != 1 {
		t.Fatalf("got %v, want one value", values)
	}
	for _, v := range values {
		return v
	}
	return 0
}

// labelOf is the one value of a label with which a metric is 1.
func labelOf(t *testing.T, m prometheus.Collector, label string) string {
	t.Helper()
	values := gather(t, m)
	if len(values) != 1 {
		t.Fatalf("got %v, want one label", values)
	}
	for key := range values {
		return strings.TrimPrefix(key, label+"=")
	}
	return ""
}

// gather are the values of a metric by its labels.
func gather(t *testing.T, m prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, one := range family.GetMetric() {
			var key []string
			for _, l := range one.GetLabel() {
				key = append(key, l.GetName()+"="+l.GetValue())
			}
			values[strings.Join(key, ",")] = one.GetGauge().GetValue() + one.GetCounter().GetValue()
		}
	}
	return values
}

// offered are the devices of the simulated node, with a ! on those that are withdrawn.
func (b *policyBed) offered() string {
	var kinds []string
	for i := range b.hw.Node().GPUs {
		for _, s := range b.hw.Node().Shapes(&b.hw.Node().GPUs[i]) {
			kind := fmt.Sprintf("%d:gpu", i)
			if s.IsShare() {
				kind = fmt.Sprintf("%d:%s", i, s.Share)
			}
			if s.IsPartition() {
				kind = fmt.Sprintf("%d:mig", i)
			}
			if b.hw.Node().Offer(s.GPU).IsWithdrawn(s) {
				kind += "!"
			}
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(slices.Compact(kinds), " ")
}

func TestAnInvalidPolicyLeavesTheOldOneInForceAndSaysSo(t *testing.T) {
	b := newPolicyBed(t, t.TempDir(), t.TempDir())
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	b.write("inference.yaml", "rules: [{tiers: [timeSlice]}]")
	const (
		applied = "Normal PolicyApplied policy %q is in force"
		unknown = `Warning InvalidPolicy label gpu.cleave.dev/policy: there is no policy "trainning": choose one of inference, training; policy "training" stays in force`
		misfit  = `Warning InvalidPolicy policy "misfit" does not fit this node: rules[0].mig.layout: 1g.6gb ×5 do not fit an NVIDIA A30; free after 1g.6gb ×4: none; policy "inference" stays in force`
	)
	steps := []struct {
		name  string
		do    func()
		again bool
		want  looked
	}{
		{"the first", func() { b.label("training") }, false, looked{"training", false, nil, "", "training"}},
		{"nothing new", func() {}, true, looked{"training", false, nil, "", "training"}},
		{"a slip in the label", func() { b.label("trainning") }, false, looked{"training", true, []string{unknown}, "", "training"}},
		{"still", func() {}, false, looked{"training", true, nil, "", "training"}},
		{"still, at a tick", func() {}, true, looked{"training", true, []string{unknown}, "", "training"}},
		{"mended", func() { b.label("training") }, false, looked{"training", false, []string{fmt.Sprintf(applied, "training")}, "", "training"}},
		{"another", func() { b.label("inference") }, false, looked{"inference", false, []string{fmt.Sprintf(applied, "inference")}, "", "inference"}},
		{"its file changes", func() { b.write("inference.yaml", "rules: [{tiers: [mig]}]") }, false, looked{"inference", false, []string{fmt.Sprintf(applied, "inference")}, "", "inference"}},
		{"one that does not fit", func() {
			b.write("misfit.yaml", "rules: [{tiers: [mig], mig: {layout: {1g.6gb: 5}}}]")
			b.label("misfit")
		}, false, looked{"inference", true, []string{misfit}, "", "inference"}},
		{"mended again", func() { b.label("inference") }, false, looked{"inference", false, []string{fmt.Sprintf(applied, "inference")}, "", "inference"}},
		{"another's file is wrong", func() { b.write("training.yaml", "rules: [{tires: []}]") }, false, looked{"inference", false, nil, "", "inference"}},
	}
	for _, step := range steps {
		step.do()
		if diff := cmp.Diff(step.want, b.look(step.again)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	b.write("inference.yaml", "rules: [{tires: []}]")
	got := b.look(false)
	if !got.Invalid || got.Policy != "inference" || len(got.Events) != 1 || !strings.Contains(got.Events[0], "inference.yaml") || !strings.Contains(got.Events[0], "tires") {
		t.Errorf("with no file that can be used: %+v, want an Event with file and field, and the policy in force", got)
	}
	if n := gauge(t, b.metrics.policyFailures); n != 3 {
		t.Errorf("%g failures are counted, want 3", n)
	}
}

func TestARestartGoesOnWithThePolicyInForceWhileAnotherIsInvalid(t *testing.T) {
	policies, plugins := t.TempDir(), t.TempDir()
	b := newPolicyBed(t, policies, plugins)
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	b.label("training")
	b.look(false)
	b.write("training.yaml", "rules: [{tires: []}]")

	b = newPolicyBed(t, policies, plugins)
	b.label("training")
	if got := b.offered(); got != "0:gpu 1:gpu" {
		t.Errorf("before the first look the GPUs offer %s, want what they offered last", got)
	}
	got := b.look(false)
	if got.Policy != "training" || !got.Invalid || got.Ready != "" || len(got.Events) != 1 || b.offered() != "0:gpu 1:gpu" {
		t.Errorf("got %+v and %s, want the policy that was in force, ready, with an Event", got, b.offered())
	}
}

func TestWithoutAPolicyThatCanBeUsedNothingIsOfferedButWhatClaimsHold(t *testing.T) {
	policies, plugins := t.TempDir(), t.TempDir()
	b := newPolicyBed(t, policies, plugins)
	b.label("training")
	got := b.look(false)
	if got.Policy != "none" || !got.Invalid || !strings.Contains(got.Ready, "waiting for a node policy that can be used: read the node policies of "+policies) || got.Kept != "" {
		t.Errorf("got %+v, want no policy, and the reason for that", got)
	}
	if len(got.Events) != 1 || !strings.HasPrefix(got.Events[0], "Warning InvalidPolicy") || !strings.Contains(got.Events[0], "no GPU is handed out") {
		t.Errorf("got Events %q, want one that says why", got.Events)
	}
	if b.offered() != "" {
		t.Errorf("the GPUs offer %s, want nothing", b.offered())
	}
	b.held = []*records.Record{{Devices: []records.Device{{GPU: b.hw.Node().GPUs[1].PCI.DeviceName(), Share: &records.Share{Kind: gpu.TimeSlice}}}}}
	b.look(false)
	if b.offered() != "1:timeslice!" {
		t.Errorf("the GPUs offer %q, want what a claim holds, withdrawn", b.offered())
	}
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	if got := b.look(false); got.Policy != "training" || got.Ready != "" || len(got.Events) != 1 || got.Kept != "training" {
		t.Errorf("got %+v once there is a policy, want it in force, with an Event", got)
	}
}

// A claim may have been allocated a device and not have been prepared when the policy changes.
func TestWhatAnEarlierPolicyOfferedLeavesAWhileLater(t *testing.T) {
	b := newPolicyBed(t, t.TempDir(), t.TempDir())
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	b.write("inference.yaml", "rules: [{tiers: [timeSlice]}]")
	b.label("training")
	b.look(false)
	if b.hw.before != nil {
		t.Error("something leaves, though nothing was offered before")
	}
	b.label("inference")
	b.look(false)
	if got, want := b.offered(), "0:gpu! 0:timeslice 1:gpu! 1:timeslice"; got != want {
		t.Errorf("just after the change the GPUs offer %q, want %q", got, want)
	}
	b.held = []*records.Record{{Devices: []records.Device{{GPU: b.hw.Node().GPUs[0].PCI.DeviceName()}}}}
	b.hw.before = nil
	b.hw.offer(nil)
	if got, want := b.offered(), "0:gpu! 0:timeslice 1:timeslice"; got != want {
		t.Errorf("later the GPUs offer %q, want %q", got, want)
	}
	if !withdrawn(b.hw.Node()) {
		t.Error("nothing counts as withdrawn, though a claim holds what the policy has no more")
	}
	b.held = nil
	b.hw.offer(nil)
	if withdrawn(b.hw.Node()) || b.offered() != "0:timeslice 1:timeslice" {
		t.Errorf("once nobody holds anything the GPUs offer %q", b.offered())
	}
}

func TestWithoutPolicyFilesTheBuiltInPolicyIsInForce(t *testing.T) {
	b := newPolicyBed(t, "", t.TempDir())
	b.label("")
	if diff := cmp.Diff(looked{Policy: policy.BuiltIn, Kept: policy.BuiltIn}, b.look(true)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAFileOfMIGPartedIsTakenAsItIs(t *testing.T) {
	b := newPolicyBed(t, t.TempDir(), t.TempDir())
	b.config.PolicyFormat = migrate.FormatMIGParted()
	const file = "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}], all-1g.6gb: [{device-filter: '0x20B710DE', devices: all, mig-enabled: true, mig-devices: {1g.6gb: 4}}]," +
		" graphics: [{devices: all, mig-enabled: true, mig-devices: {1g.6gb+gfx: 4}}]}"
	if err := os.WriteFile(filepath.Join(b.config.PolicyFile, "config.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ label, inForce, event string }{
		{"all-disabled", "all-disabled", ""},
		{"all-1g.6gb", "all-1g.6gb", `policy "all-1g.6gb" is in force`},
		{"graphics", "all-1g.6gb", `policy "graphics": mig-configs[graphics][0].mig-devices[1g.6gb+gfx]: no equivalent`},
	} {
		b.label(step.label)
		got := b.look(false)
		if got.Policy != step.inForce || got.Invalid != (step.label != step.inForce) || !strings.Contains(strings.Join(got.Events, "; "), step.event) {
			t.Errorf("label %s: got %+v", step.label, got)
		}
	}
	if r := b.policy.rules().Rules[0]; r.MIG == nil || r.MIG.Layout["1g.6gb"] != 4 {
		t.Errorf("rule: got %+v", r)
	}
	if len(b.policy.notes) != 2 || !strings.Contains(b.policy.notes[0], "config.yaml: mig-configs[graphics]") {
		t.Errorf("notes: got %q", b.policy.notes)
	}
}

func TestAConflictIsToldAndEnds(t *testing.T) {
	b := newPolicyBed(t, "", t.TempDir())
	look := func(again bool) (events []string) {
		t.Helper()
		b.lookBeside(t.Context(), b.hw, again)
		for len(b.recorder.Events) > 0 {
			reason := strings.Fields(<-b.recorder.Events)
			events = append(events, strings.Join(reason[:2], " "))
		}
		return events
	}
	node := func(capacity ...string) {
		t.Helper()
		if err := b.around.object.Add(nodeObject("", capacity...)); err != nil {
			t.Fatal(err)
		}
	}
	node()
	b.look(false)
	steps := []struct {
		name     string
		capacity []string
		again    bool
		events   []string
		conflict bool
	}{
		{"nobody", nil, true, nil, false},
		{"a device plugin", []string{"nvidia.com/gpu", "2"}, false, []string{"Warning GPUConflict"}, true},
		{"still", []string{"nvidia.com/gpu", "2"}, false, nil, true},
		{"still, at a tick", []string{"nvidia.com/gpu", "2"}, true, []string{"Warning GPUConflict"}, true},
		{"with more", []string{"nvidia.com/gpu", "8"}, false, []string{"Warning GPUConflict"}, true},
		{"gone", []string{"nvidia.com/gpu", "0"}, false, []string{"Normal GPUConflictOver"}, false},
		{"gone still", nil, true, nil, false},
	}
	for _, step := range steps {
		node(step.capacity...)
		if diff := cmp.Diff(step.events, look(step.again)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", step.name, diff)
		}
		ready := text(b.ready.err())
		if strings.Contains(ready, "the node's GPUs are not published: a device plugin") != step.conflict || (ready != "") != step.conflict {
			t.Errorf("%s: readiness says %q, conflict: %t", step.name, ready, step.conflict)
		}
		if (gauge(t, b.metrics.conflict) == 1) != step.conflict || (b.conflict != nil) != step.conflict {
			t.Errorf("%s: metric %g, conflict %v, want one: %t", step.name, gauge(t, b.metrics.conflict), b.conflict, step.conflict)
		}
	}
}

func TestAGPUThatLacksPartitionsOfItsLayoutIsUncut(t *testing.T) {
	b := newPolicyBed(t, t.TempDir(), t.TempDir())
	var there []gpu.Place
	b.hw.standing = func(g *gpu.GPU) []gpu.Place {
		if g.PCI == b.hw.Session.Node().GPUs[1].PCI {
			return there
		}
		return nil
	}
	b.write("default.yaml", "rules: [{match: {indexes: [1]}, mig: {layout: {1g.6gb: 2}}}, {tiers: [exclusive]}]")
	b.label("")
	b.look(false)
	b.hw.before = nil
	b.hw.offer(nil)
	if !uncut(b.hw.Node(), b.hw.standing) {
		t.Error("with no partition the GPU counts as cut")
	}
	there = b.hw.Node().Offers[1].Partitions.Places
	if len(there) != 2 || uncut(b.hw.Node(), b.hw.standing) {
		t.Errorf("with the partitions %v the GPU counts as uncut", there)
	}
	there = there[:1]
	if !uncut(b.hw.Node(), b.hw.standing) {
		t.Error("with one partition of two the GPU counts as cut")
	}
}

func TestWhatIsInTheWayOfALayoutIsToldOnce(t *testing.T) {
	b := newPolicyBed(t, t.TempDir(), t.TempDir())
	store, storeErr := records.OpenStore(records.Disk{}, filepath.Join(t.TempDir(), "claims"))
	layouts, layoutsErr := records.OpenLayouts(records.Disk{}, filepath.Join(t.TempDir(), "layouts"))
	locks, locksErr := claims.OpenLocks(filepath.Join(t.TempDir(), "locks"))
	if err := errors.Join(storeErr, layoutsErr, locksErr); err != nil {
		t.Fatal(err)
	}
	b.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: "gpu.cleave.dev", Pool: "node-1"}, BootID: "boot", Store: store, Layouts: layouts, Locks: locks,
	})
	b.engine.SetHardware(b.hw, nil)
	// An A30 changes its mode with a reset only.
	b.hw.policy = &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{MIG: &v1alpha1.MIGPolicy{Layout: map[string]int32{"1g.6gb": 4}}}}}
	b.hw.offer(nil)
	for range 2 {
		b.keepLayouts(t.Context())
	}
	if n := len(b.recorder.Events); n != 1 {
		t.Fatalf("got %d Events, want one", n)
	}
	if got := <-b.recorder.Events; !strings.Contains(got, "LayoutNotKept") || !strings.Contains(got, "only a reset changes") {
		t.Errorf("got Event %q, want what is in the way", got)
	}
	b.hw.policy = &v1alpha1.NodePolicy{}
	b.hw.offer(nil)
	b.keepLayouts(t.Context())
	if got := <-b.recorder.Events; !strings.Contains(got, "LayoutKept") || b.uncut != "" {
		t.Errorf("got Event %q and %q, want that it is over", got, b.uncut)
	}
}
