// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"
)

// applied is what is seen of a plan's policy.
type applied struct {
	Policy  string
	Invalid bool
	Events  []string
	// Ready is empty or why there is no policy.
	Ready string
	// Kept is the name of the policy that a restart begins with.
	Kept string
}

// look makes plans and returns what is seen.
func (b *bed) look(again bool) applied {
	b.t.Helper()
	changed := Policies
	if again {
		changed |= Periodic
	}
	p := b.step(changed)
	got := applied{Policy: p.Status.Policy, Invalid: p.Status.PolicyInvalid, Events: b.heard(), Ready: text(p.Status.NoPolicy)}
	if p.Keep != nil {
		got.Kept = p.Keep.Name
	}
	return got
}

func TestDesired_InvalidPolicy(t *testing.T) {
	b := newBed(t, "a30")
	label := func(value string) { b.Cluster.Node.Policy = value }
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	b.write("inference.yaml", "rules: [{tiers: [timeSlice]}]")
	const (
		active  = "Normal PolicyApplied policy %q is active"
		unknown = `Warning InvalidPolicy label gpu.cleave.dev/policy: there is no policy "trainning": choose one of inference, training; policy "training" stays active`
		misfit  = `Warning InvalidPolicy policy "misfit" does not fit this node: rules[0].mig.layout: 1g.6gb ×5 do not fit an NVIDIA A30; free after 1g.6gb ×4: none; policy "inference" stays active`
	)
	steps := []struct {
		name  string
		do    func()
		again bool
		want  applied
	}{
		{"first", func() { label("training") }, false, applied{"training", false, nil, "", "training"}},
		{"nothing new", func() {}, true, applied{"training", false, nil, "", "training"}},
		{"typo in the label", func() { label("trainning") }, false, applied{"training", true, []string{unknown}, "", "training"}},
		{"unchanged", func() {}, false, applied{"training", true, nil, "", "training"}},
		{"unchanged, periodic", func() {}, true, applied{"training", true, []string{unknown}, "", "training"}},
		{"corrected", func() { label("training") }, false, applied{"training", false, []string{fmt.Sprintf(active, "training")}, "", "training"}},
		{"another", func() { label("inference") }, false, applied{"inference", false, []string{fmt.Sprintf(active, "inference")}, "", ""}},
		{"file changes", func() { b.write("inference.yaml", "rules: [{tiers: [mig]}]") }, false, applied{"inference", false, []string{fmt.Sprintf(active, "inference")}, "", ""}},
		{"does not fit", func() {
			b.write("misfit.yaml", "rules: [{tiers: [mig], mig: {layout: {1g.6gb: 5}}}]")
			label("misfit")
		}, false, applied{"inference", true, []string{misfit}, "", ""}},
		{"corrected again", func() { label("inference") }, false, applied{"inference", false, []string{fmt.Sprintf(active, "inference")}, "", ""}},
		{"file of another is invalid", func() { b.write("training.yaml", "rules: [{tires: []}]") }, false, applied{"inference", false, nil, "", ""}},
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
		t.Errorf("no valid file: %+v, want an Event with file and field, and the active policy", got)
	}
	if b.failed != 3 {
		t.Errorf("%d failures are counted, want 3", b.failed)
	}
}

// The default policy stays active, also across a restart, when its name can no longer be read: the built-in one would offer more.
func TestDesired_NamelessPolicy(t *testing.T) {
	b := newBed(t, "a30")
	b.write("inference.yaml", "rules: [{tiers: [timeSlice]}]")
	b.write("site.yaml", "metadata: {name: default}\nrules: [{tiers: [exclusive]}]")
	b.look(false)
	b.write("site.yaml", "metadata: {name: Default}\nrules: [{tiers: [exclusive]}]")
	for _, when := range []string{"changed", "restarted"} {
		got := b.look(false)
		if got.Policy != "default" || !got.Invalid || len(got.Events) != 1 || !strings.Contains(got.Events[0], "site.yaml") || b.offered() != "0:gpu 1:gpu" {
			t.Errorf("%s: got %+v and %s, want the policy that was active, with an Event", when, got, b.offered())
		}
		b.Memory = Memory{Active: b.Memory.Active}
	}
}

func TestDesired_PolicyAfterRestart(t *testing.T) {
	b := newBed(t, "a30")
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	b.Cluster.Node.Policy = "training"
	b.look(false)
	b.write("training.yaml", "rules: [{tiers: []}]")
	b.write("training.yaml", "rules: [{tires: []}]")

	b.Memory = Memory{Active: b.Memory.Active}
	got := b.look(false)
	if got.Policy != "training" || !got.Invalid || got.Ready != "" || len(got.Events) != 1 || b.offered() != "0:gpu 1:gpu" {
		t.Errorf("got %+v and %s, want the policy that was active, ready, with an Event", got, b.offered())
	}
}

func TestDesired_NoPolicy(t *testing.T) {
	b := newBed(t, "a30")
	b.Cluster.Node.Policy = "training"
	b.Policies, b.PolicyErr = policy.Load(b.dir, policy.Format{})
	got := b.look(false)
	if got.Policy != "none" || !got.Invalid || !strings.Contains(got.Ready, "read the node policies of "+b.dir) || got.Kept != "" {
		t.Errorf("got %+v, want no policy, and the reason for that", got)
	}
	if len(got.Events) != 1 || !strings.HasPrefix(got.Events[0], "Warning InvalidPolicy") || !strings.Contains(got.Events[0], "no GPU is offered") {
		t.Errorf("got Events %q, want one with the reason", got.Events)
	}
	if b.offered() != "" {
		t.Errorf("the GPUs offer %s, want nothing", b.offered())
	}
	b.allocate(records.Device{GPU: b.device(1), Share: &records.Share{Kind: gpu.TimeSlice}})
	b.look(false)
	if b.offered() != "1:timeslice!" {
		t.Errorf("the GPUs offer %q, want what is allocated, withdrawn", b.offered())
	}
	b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
	if got := b.look(false); got.Policy != "training" || got.Ready != "" || len(got.Events) != 1 || got.Kept != "training" {
		t.Errorf("got %+v once there is a policy, want it active, with an Event", got)
	}
}

func TestDesired_BuiltInPolicy(t *testing.T) {
	b := newBed(t, "a30")
	if diff := cmp.Diff(applied{Policy: policy.BuiltIn, Kept: policy.BuiltIn}, b.look(true)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A claim may have been allocated a device and not have been prepared when the policy changes, also while the plugin is away.
func TestDesired_PreviousPolicy(t *testing.T) {
	for name, restarts := range map[string]bool{"running": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, "a30")
			b.write("training.yaml", "rules: [{tiers: [exclusive]}]")
			b.write("inference.yaml", "rules: [{tiers: [timeSlice]}]")
			b.Cluster.Node.Policy = "training"
			b.look(false)
			if b.Memory.Previous != nil {
				t.Error("devices are withdrawn, though nothing was offered before")
			}
			if restarts {
				b.Memory = Memory{Active: b.Memory.Active}
			}
			b.Cluster.Node.Policy = "inference"
			b.look(false)
			if got, want := b.offered(), "0:gpu! 0:timeslice 1:gpu! 1:timeslice"; got != want {
				t.Errorf("just after the change the GPUs offer %q, want %q", got, want)
			}
			b.allocate(records.Device{GPU: b.device(0)})
			b.listed()
			if got, want := b.offered(), "0:gpu! 0:timeslice 1:timeslice"; got != want {
				t.Errorf("later the GPUs offer %q, want %q", got, want)
			}
			if !hasWithdrawn(b.plan.Offer) {
				t.Error("nothing counts as withdrawn, though the policy no longer offers what is allocated")
			}
			b.allocates()
			if hasWithdrawn(b.plan.Offer) || b.offered() != "0:timeslice 1:timeslice" {
				t.Errorf("once nothing is allocated the GPUs offer %q", b.offered())
			}
		})
	}
}

func TestDesired_MIGPartedFile(t *testing.T) {
	b := newBed(t, "a30")
	const file = "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}], all-1g.6gb: [{device-filter: '0x20B710DE', devices: all, mig-enabled: true, mig-devices: {1g.6gb: 4}}]," +
		" graphics: [{devices: all, mig-enabled: true, mig-devices: {1g.6gb+new: 4}}]}"
	if err := os.WriteFile(filepath.Join(b.dir, "config.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	b.load(migrate.FormatMIGParted())
	for _, step := range []struct{ label, active, event string }{
		{"all-disabled", "all-disabled", ""},
		{"all-1g.6gb", "all-1g.6gb", `policy "all-1g.6gb" is active`},
		{"graphics", "all-1g.6gb", `policy "graphics": mig-configs[graphics][0].mig-devices[1g.6gb+new]: no equivalent`},
	} {
		b.Cluster.Node.Policy = step.label
		got := b.look(false)
		if got.Policy != step.active || got.Invalid != (step.label != step.active) || !strings.Contains(strings.Join(got.Events, "; "), step.event) {
			t.Errorf("label %s: got %+v", step.label, got)
		}
	}
	if r := b.Memory.Active.Policy.Rules[0]; r.MIG == nil || r.MIG.Layout["1g.6gb"] != 4 {
		t.Errorf("rule: got %+v", r)
	}
	if notes := b.Memory.PolicyNotes; len(notes) != 2 || !strings.Contains(notes[0], "config.yaml: mig-configs[graphics]") {
		t.Errorf("notes: got %q", notes)
	}
}
