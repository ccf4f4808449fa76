// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// seenLook is a look at a GPU: which claim has it, and what is known. Negative numbers are not.
type seenLook struct {
	claim      types.UID
	memory, sm float64
}

func (l seenLook) of(n int) Look {
	look := Look{GPU: "gpu", Holdings: []Holding{wholeGPU(l.claim)}, Owners: Owners{1: {Pod: l.claim}}, Reading: gpu.Reading{At: at(n)}}
	process := gpu.Process{PID: 1, GI: gpu.WholeGPU}
	if l.memory >= 0 {
		process.Memory = ptr(uint64(l.memory))
	}
	if l.sm >= 0 {
		look.Reading.GPM = gpmOf(gpu.WholeGPU, l.sm)
	}
	look.Reading.Processes = []gpu.Process{process}
	return look
}

// The most that was seen, and in how many looks: what was not known is not counted as nothing.
func TestTracker_Seen(t *testing.T) {
	const unknown = -1
	for name, tt := range map[string]struct {
		looks []seenLook
		want  Seen
	}{
		"first look": {[]seenLook{{"a", 5, .9}}, Seen{Since: at(0), Memory: ptr[uint64](5), MemoryLooks: 1}}, // of the claim before, maybe
		"the most stays": {[]seenLook{{"a", 5, unknown}, {"a", 9, .4}, {"a", 7, .6}, {"a", 0, 0}},
			Seen{Since: at(0), Memory: ptr[uint64](9), MemoryLooks: 4, SM: ptr(.6), SMLooks: 3}},
		"idle": {[]seenLook{{"a", 0, unknown}, {"a", 0, 0}}, Seen{Since: at(0), Memory: ptr[uint64](0), MemoryLooks: 2, SM: ptr(0.), SMLooks: 1}},
		"memory was unknown at times": {[]seenLook{{"a", 5, unknown}, {"a", unknown, .4}, {"a", unknown, .6}, {"a", 4, .1}},
			Seen{Since: at(0), Memory: ptr[uint64](5), MemoryLooks: 2, SM: ptr(.6), SMLooks: 3}},
		"nothing is known": {[]seenLook{{"a", unknown, unknown}, {"a", unknown, unknown}}, Seen{Since: at(0)}},
		"another claim's":  {[]seenLook{{"z", 99, unknown}, {"z", 99, .9}, {"a", 5, .9}, {"a", 6, .2}}, Seen{Since: at(2), Memory: ptr[uint64](6), MemoryLooks: 2, SM: ptr(.2), SMLooks: 1}},
		"it was gone for a while": {[]seenLook{{"a", 99, unknown}, {"z", 1, unknown}, {"a", 5, unknown}},
			Seen{Since: at(2), Memory: ptr[uint64](5), MemoryLooks: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker()
			for n, l := range tt.looks {
				look := l.of(n)
				tracker.Keep(look.Holdings)
				tracker.Observe(look)
			}
			got := tracker.Used(time.Time{})
			if len(got) != 1 {
				t.Fatalf("got %+v", got)
			}
			if diff := cmp.Diff(tt.want, got[0].Seen); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
