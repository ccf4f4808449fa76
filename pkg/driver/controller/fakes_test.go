// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// TestMain discards the log, which is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}

const policyHead = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"

// start is when the observations of the tests begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bed is a node as observed, whose plans are made one after the other.
type bed struct {
	Observed
	t *testing.T
	// dir is of the policy files.
	dir string
	// plan is the last plan, slices the devices that are published, events the Events since they were looked at.
	plan   Plan
	slices [][]string
	events []string
	failed int
}

// newBed is a node of a model whose claims can be prepared and whose supervisor answers.
func newBed(t *testing.T, model string) *bed {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, dir: t.TempDir()}
	b.Observed = Observed{Now: start, Ready: true, Inventory: session.Node()}
	b.write("", "")
	return b
}

// write changes a policy file; one without text is removed. Without any file, the built-in policy is active.
func (b *bed) write(name, text string) {
	b.t.Helper()
	if name != "" {
		path := filepath.Join(b.dir, name)
		err := os.Remove(path)
		if text != "" {
			err = os.WriteFile(path, []byte(policyHead+text), 0o600)
		}
		if err != nil && !os.IsNotExist(err) {
			b.t.Fatal(err)
		}
	}
	b.load(policy.Format{})
}

// rules makes plans for a policy of these rules.
func (b *bed) rules(text string) {
	b.t.Helper()
	b.write("default.yaml", "rules: ["+text+"]")
	b.step(Policies)
}

// load reads the policy files.
func (b *bed) load(format policy.Format) {
	b.t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	path := b.dir
	if len(entries) == 0 {
		path = ""
	}
	b.Policies, b.PolicyErr = policy.Load(path, format)
}

// step makes plans, for aspects that have changed, until the node need not be observed again. What a plan asks for is done at
// once and changes nothing.
func (b *bed) step(changed Aspect) Plan {
	b.t.Helper()
	b.Changed = changed
	var work Plan
	for b.Pass = 0; ; b.Pass++ {
		b.plan = Desired(b.Observed)
		work.Recover, work.Layouts = work.Recover || b.plan.Recover, work.Layouts || b.plan.Layouts
		work.LeaveMIGMode = work.LeaveMIGMode || b.plan.LeaveMIGMode
		if b.plan.Status.PolicyFailed {
			b.failed++
		}
		for _, r := range b.plan.Reports {
			if kind := map[bool]string{true: "Warning", false: "Normal"}[r.Warning]; r.Reason != "" {
				b.events = append(b.events, kind+" "+r.Reason+" "+r.Message)
			}
		}
		if b.plan.Slices != nil {
			b.slices = devicesOf(b.plan.Slices)
		}
		b.Memory, b.Changed = b.plan.Memory, 0
		if !b.plan.ObserveAgain {
			break
		}
		if b.Pass > 2*maxPasses {
			b.t.Fatal("the plan never settles")
		}
	}
	b.plan.Recover, b.plan.Layouts, b.plan.LeaveMIGMode = work.Recover, work.Layouts, work.LeaveMIGMode
	return b.plan
}

// devicesOf are the devices of slices, with a ! on those that are tainted.
func devicesOf(slices []nodeslices.Slice) [][]string {
	var all [][]string
	for _, s := range slices {
		var devices []string
		for _, d := range s.Devices {
			name := d.Name
			if len(d.Taints) > 0 {
				name += "!"
			}
			devices = append(devices, name)
		}
		all = append(all, devices)
	}
	return all
}

// heard returns the Events since the last call.
func (b *bed) heard() []string {
	events := b.events
	b.events = nil
	return events
}

// reasons are the first two words of Events.
func reasons(events []string) []string {
	var all []string
	for _, e := range events {
		all = append(all, strings.Join(strings.Fields(e)[:2], " "))
	}
	return all
}

// work is what the last plan does on the hardware.
func (b *bed) work() string {
	var all []string
	for _, w := range []struct {
		do   bool
		name string
	}{{b.plan.Recover, "recover"}, {b.plan.LeaveMIGMode, "leave MIG mode"}, {b.plan.Layouts, "layouts"}} {
		if w.do {
			all = append(all, w.name)
		}
	}
	return strings.Join(all, ", ")
}

// allocate notes claims, one for each device.
func (b *bed) allocate(devices ...records.Device) {
	b.Allocations = nil
	for i, d := range devices {
		if d.Device == "" {
			d.Device = d.GPU
		}
		b.Allocations = append(b.Allocations, &records.Record{
			Claim: records.Claim{Namespace: "ns", Name: fmt.Sprintf("c%d", i)}, State: records.Prepared, Devices: []records.Device{d},
		})
	}
	b.Records = b.Allocations
}

// allocates notes claims and makes plans.
func (b *bed) allocates(devices ...records.Device) {
	b.t.Helper()
	b.allocate(devices...)
	b.step(Allocations)
}

// device is the name of the whole GPU i.
func (b *bed) device(i int) string { return b.Inventory.GPUs[i].PCI.DeviceName() }

// offered is what the node offers, with a ! on what is withdrawn.
func (b *bed) offered() string {
	var kinds []string
	node := b.plan.Offer
	for i := range node.GPUs {
		g := &node.GPUs[i]
		for _, s := range node.Shapes(g) {
			kind := fmt.Sprintf("%d:gpu", i)
			if s.IsShare() {
				kind = fmt.Sprintf("%d:%s", i, s.Share)
			}
			if s.IsPartition() {
				kind = fmt.Sprintf("%d:mig", i)
			}
			if node.Offer(g).IsWithdrawn(s) {
				kind += "!"
			}
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(slices.Compact(kinds), " ")
}

// ofKind are the names of the devices that a node offers of a kind of share.
func ofKind(node *policy.Node, kind gpu.Share) []string {
	var names []string
	for i := range node.GPUs {
		for _, s := range node.Shapes(&node.GPUs[i]) {
			if s.Share == kind {
				names = append(names, s.Name())
			}
		}
	}
	return names
}

// tainted are the devices that the last published view taints with a key.
func (b *bed) tainted(key string) []string {
	var names []string
	for _, t := range b.Memory.Published.Taints {
		if t.Key == key {
			names = append(names, t.Device)
		}
	}
	return names
}

// every are the names of all devices that GPU i offers.
func (b *bed) every(i int) []string {
	var names []string
	for _, s := range b.plan.Offer.Shapes(&b.plan.Offer.GPUs[i]) {
		names = append(names, s.Name())
	}
	return names
}
