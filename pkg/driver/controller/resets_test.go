// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/health"
)

// request labels the node.
func (b *bed) request(reset string) {
	b.t.Helper()
	b.Cluster.Node.Reset = reset
	b.step(Cluster)
	b.step(Publication)
}

func (b *bed) wantTaints(when string, want ...string) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.tainted(nodeslices.TaintReset)); diff != "" {
		b.t.Errorf("%s: devices tainted for a reset (-want +got):\n%s", when, diff)
	}
}

// wantLook checks that nothing is ordered, and when the next plan is due.
func (b *bed) wantLook(when string, want time.Duration) {
	b.t.Helper()
	b.wantOrder(when, "")
	if got := b.plan.LookAgain.Sub(b.Now); got != want {
		b.t.Errorf("%s: looks again after %s, want %s", when, got, want)
	}
}

// A GPU is tainted when its reset is requested, reset once its claims have ended, and offered again afterwards, whether or not the label
// is still there.
func TestDesired_Reset(t *testing.T) {
	b := newModeBed(t)
	b.allocate(records.Device{GPU: b.device(2)})
	b.request(b.device(2) + ".1")
	b.wantTaints("requested", b.device(2))
	b.after(time.Hour)
	b.wantOrder("with a claim", "")
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "GPUResetPending") ||
		!strings.Contains(events[0], "will be reset once these claims have ended: ns/c0") {
		t.Errorf("Events = %q, want one about the claim", events)
	}
	b.allocates()
	b.wantOrder("once the claim has ended", "2 reset")
	b.ModeRunning, b.ModesLeft = *b.plan.Mode, map[string]bool{b.device(2): true}
	b.after(time.Second)
	b.wantTaints("while it is reset", b.device(2))
	b.ModeRunning, b.ModesLeft, b.ResetDone = ModeOrder{}, nil, b.device(2)+".1"
	b.Conditions = map[gpu.PCIAddress][]health.Condition{b.Inventory.GPUs[2].PCI: {{Reason: "needs-reset"}}} // they end a moment later
	b.step(Inventory)
	b.step(Health)
	b.Conditions = nil
	b.wantOrder("reset", "")
	b.wantTaints("reset")
	b.after(time.Hour)
	if diff := cmp.Diff([]string{"Normal GPUReset"}, reasons(b.heard())); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	b.Conditions = map[gpu.PCIAddress][]health.Condition{b.Inventory.GPUs[2].PCI: {{Reason: "needs-reset"}}}
	b.step(Health)
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "was carried out before") {
		t.Errorf("failed again: Events = %q, want one that says why it is not reset", events)
	}
	if b.plan.ForgetReset {
		t.Error("the request is forgotten while the label is there")
	}
	b.request(b.device(2) + ".2")
	b.wantTaints("requested again", b.device(2))
	b.request("")
	b.wantTaints("withdrawn")
	if !b.plan.ForgetReset {
		t.Error("the request is not forgotten though the label is gone")
	}
}

// A change that was cut short is tried again, too, while the reset waits for claims. Both are reported once.
func TestDesired_ResetWaits(t *testing.T) {
	b := newModeBed(t)
	b.allocate(records.Device{GPU: b.device(2)})
	b.ModesLeft = map[string]bool{b.device(2): true}
	b.request(b.device(2))
	for range 3 {
		b.wantOrder("first, and after each pause", "2 off")
		b.ModeRunning = *b.plan.Mode
		b.after(time.Second)
		b.ModeRunning, b.ModeFailures = ModeOrder{}, map[string]ModeFailure{b.device(2): {Err: errors.New("wait for nvidia-smi"), At: b.Now}}
		b.after(time.Second)
		b.wantOrder("failed just now", "")
		b.after(modeRetryAtMost)
	}
	events := b.heard()
	if diff := cmp.Diff([]string{"Warning MIGModeNotChanged", "Normal GPUResetPending"}, reasons(events)); diff != "" {
		t.Fatalf("Events (-want +got):\n%s", diff)
	}
	if want := "will be reset once these claims have ended: ns/c0"; !strings.Contains(events[1], want) {
		t.Errorf("Event = %q, want %q", events[1], want)
	}
	b.allocates()
	b.step(Publication)
	b.after(modeSettle)
	b.wantOrder("once the claim has ended", "2 reset")
}

// A reset that fails is tried again, and reported once for each reason; a change of the mode that was cut short is finished first.
func TestDesired_ResetFails(t *testing.T) {
	b := newModeBed(t)
	b.ModesLeft = map[string]bool{b.device(2): true}
	b.request(b.device(2))
	b.wantOrder("with a change that was cut short", "2 off")
	b.wantTaints("with a change that was cut short", b.device(2)) // otherwise the reset would wait for whoever gets it meanwhile
	b.after(time.Second)
	for _, reset := range []string{"", b.device(2), b.device(2)} { // a GPU that has failed cannot be restored before its reset
		b.ModeFailures = map[string]ModeFailure{b.device(2): {Reset: reset, Err: errors.New("GPU requires reset"), At: b.Now}}
		b.step(0)
		b.step(Publication)
		b.after(modeRetryAtMost)
		b.wantOrder("with a change that cannot be finished", "2 reset")
	}
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "cannot be reset yet: GPU requires reset") {
		t.Errorf("Events = %q, want one about the reset", events)
	}
	b.ModesLeft, b.ModeFailures = nil, nil
	b.request("")
	b.request(b.device(2))
	b.step(Inventory)
	b.step(Publication)
	b.after(modeSettle)
	b.wantOrder("finished", "2 reset")
	b.heard()
	for range 3 {
		b.ModeFailures = map[string]ModeFailure{b.device(2): {Reset: b.device(2), Err: errors.New("in use: open in dcgm (process 9)"), At: b.Now}}
		b.step(0)
		b.wantOrder("failed just now", "")
		b.after(modeRetryAtMost)
		b.wantOrder("after the pause", "2 reset")
	}
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "Warning GPUNotReset") ||
		!strings.Contains(events[0], "cannot be reset yet: in use: open in dcgm (process 9). Next attempt in 5s") {
		t.Errorf("Events = %q, want one", events)
	}
}

// A reset waits for the pods of a claim, and not for what is left of it: the driver of a failed GPU undoes nothing before, and other GPUs
// may take long.
func TestDesired_ResetEndsPartitions(t *testing.T) {
	for name, d := range map[string]records.Device{
		"partition":   {Partition: &gpu.Partition{}},
		"time slices": {Share: &records.Share{Kind: gpu.TimeSlice, Interval: "Long"}},
		"MPS":         {Share: &records.Share{Kind: gpu.MPS}},
		"released":    {Released: true},
		"observed":    {AdminAccess: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newModeBed(t)
			d.GPU, d.Device = b.device(2), b.device(2)
			left := &records.Record{State: records.Releasing, Pods: []types.UID{"pod"}, Claim: records.Claim{Namespace: "ns", Name: "a", UID: "a"},
				Devices: []records.Device{d, {GPU: b.device(3), Device: b.device(3)}}}
			b.Allocations = []*records.Record{left}
			b.request(b.device(2))
			b.after(time.Hour)
			b.wantOrder("with processes of the pod", "")
			left.Pods = nil
			b.step(Allocations)
			b.wantOrder("without", "2 reset")
		})
	}
}

// A GPU that has failed may not change its mode before it is reset.
func TestDesired_ResetBeforeChange(t *testing.T) {
	b := newModeBed(t)
	b.request(b.device(0))
	b.choose("inference")
	b.after(modeSettle)
	b.wantOrder("requested", "0 reset")
	b.ResetDone = b.device(0)
	b.step(Inventory)
	b.step(Publication)
	b.after(modeSettle)
	b.wantOrder("reset", "0 on")
}

func TestDesired_ResetOfNoGPU(t *testing.T) {
	b := newModeBed(t)
	for range 2 {
		b.request("gpu-0000-ff-00-0.1")
	}
	b.after(time.Hour)
	b.wantOrder("a GPU that the node does not have", "")
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "gpu.cleave.dev/reset=gpu-0000-ff-00-0.1 names no GPU") ||
		!strings.Contains(events[0], b.device(7)) {
		t.Errorf("Events = %q, want one that names the GPUs", events)
	}
}

// A request that was carried out before is not carried out again, which whoever made it anew has to know. It is said once.
func TestDesired_ResetBefore(t *testing.T) {
	b := newModeBed(t)
	b.ResetDone = b.device(2)
	b.request(b.device(2))
	b.wantOrder("carried out before", "")
	if events := b.heard(); len(events) > 0 {
		t.Errorf("Events = %q, want none for a healthy GPU", events)
	}
	pci := b.Inventory.GPUs[2].PCI
	for range 2 {
		b.Conditions = map[gpu.PCIAddress][]health.Condition{pci: {{Reason: "needs-reset"}}}
		b.step(Health)
		b.Conditions = nil
		b.step(Health)
	}
	b.wantOrder("unhealthy", "")
	if events := b.heard(); len(events) != 1 || !strings.Contains(events[0], "Warning GPUNotReset") ||
		!strings.Contains(events[0], "gpu.cleave.dev/reset="+b.device(2)+" was carried out before") {
		t.Errorf("Events = %q, want one that says so", events)
	}
}

// An API server that drops taints never has the slices as they are wanted. The reset waits for what it may have yet to come, and then for
// whoever was allocated the GPU meanwhile.
func TestDesired_ResetWithoutTaints(t *testing.T) {
	b := newModeBed(t)
	b.Arrived = false
	b.request(b.device(2))
	b.wantLook("requested", arriveAtMost)
	b.after(arriveAtMost / 2)
	b.WriteFailed = b.Now
	b.after(arriveAtMost / 2)
	b.wantLook("while slices are refused", rewriteAtMost+arriveAtMost/2)
	b.WriteFailed = time.Time{}
	b.after(0)
	b.wantLook("not seen to arrive", modeSettle)
	b.allocates(records.Device{GPU: b.device(2)})
	b.after(modeSettle)
	b.wantOrder("with a claim", "")
	if diff := cmp.Diff([]string{"Normal GPUResetPending"}, reasons(b.heard())); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	b.allocates()
	b.wantOrder("once the claim has ended", "2 reset")
	b.WriteFailed = b.Now
	b.after(time.Second)
	b.wantLook("while slices are refused again", rewriteAtMost+arriveAtMost-time.Second)
}
