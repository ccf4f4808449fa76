// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// unreadable restarts the plugin while one NVML call about the first GPU fails.
func (b *simBed) unreadable() *simBed {
	b.t.Helper()
	_, err := b.node.Faults().Inject(sim.Fault{GPU: 0, Call: "nvmlDeviceGetUUID", Code: sim.CodeUnknown})
	must(b.t, err)
	b = b.restart()
	if len(b.session.Node().Problems) != 1 {
		b.t.Fatalf("problems %v, want one", b.session.Node().Problems)
	}
	return b
}

// readable ends that, and has the hardware read again.
func (b *simBed) readable() {
	b.t.Helper()
	must(b.t, errors.Join(b.node.Faults().Clear(-1), b.session.Refresh(b.t.Context())))
	b.Recover(b.t.Context())
}

func TestUnreadableGPU_PartitionIsKept(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	device := b.name(0, 19, 6)
	b.prepare("a", device)
	b = b.unreadable()
	b.want(list("0 19@6"), list("a"), list("a"))
	err := b.tryPrepare("a", device)
	if !errors.Is(err, gpu.ErrUnreadable) || strings.Contains(err.Error(), "was removed") {
		t.Errorf("Prepare = %v, want %v", err, gpu.ErrUnreadable)
	}
	b.want(list("0 19@6"), list("a"), list("a"))
	b.readable()
	b.prepare("a", device)
	b.want(list("0 19@6"), list("a"), list("a"))
}

func TestUnreadableGPU_PartitionGivenBackDoesNotLeak(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	b.prepare("a", b.name(0, 19, 6))
	b.prepare("b", b.name(1, 19, 6))
	b = b.unreadable()
	b.unprepare("a") // the pod need not wait
	b.unprepare("b")
	b.want(list("0 19@6"), list("a"), nil)
	b = b.restart()
	b.Recover(t.Context())
	b.want(list("0 19@6"), list("a"), nil)
	b.readable()
	b.want(nil, nil, nil)
}

// without is a node that lacks the i-th GPU.
func (b *bed) without(i int) {
	node := b.hardware.node
	node.GPUs, node.Offers = slices.Delete(node.GPUs, i, i+1), slices.Delete(node.Offers, i, i+1)
}

// A partition on record is not looked for on another GPU that came into its slot: that has the same places.
func TestReplacedGPU_PartitionsOfTheNewOneAreLeftAlone(t *testing.T) {
	b := newSimBed(t, "hgx-h100")
	device := b.name(0, 19, 6)
	b.prepare("a", device)
	must(t, b.node.Hardware().Replace(0, "GPU-ffffffff-0000-0000-0000-000000000001"))
	b = b.restart() // the simulated board keeps its instances: as if made on the new one by another tool
	err := b.tryPrepare("a", device)
	wantError(t, err, "did not create")
	b.unprepare("a")
	b.Recover(t.Context())
	b.want(list("0 19@6"), nil, nil)
	if !slices.Contains(b.Partitions.Occupied(), device) {
		t.Errorf("device %s is not tainted, though a partition is in its place", device)
	}
}
