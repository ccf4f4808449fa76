// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"testing"
)

// TestRepack_Held: what some of several victims left is held for the pod that they were evicted for. No pod is restarted to take its place:
// its replacement would not get it.
func TestRepack_Held(t *testing.T) {
	p := newPriorityBed(t, "n1", "n2")
	b := &repackBed{bed: p.bed, account: p.kubeconfig, classOf: func(string) string { return "mig-1g.10gb.cleave.dev" }, replaced: map[string]bool{}}
	b.startScheduler("{}")
	b.addPods("other", "gpu.cleave.dev", 7, priority("high"), onNode("n1"))
	b.addPods("low", "mig-1g.10gb.cleave.dev", 7, priority("low"), graceful, onNode("n1"))
	b.scheduled(14)
	b.addPods("urgent", "gpu.cleave.dev", 1, priority("high"), onNode("n1"))
	victims := p.ending(7)
	for _, v := range victims[:6] {
		p.gone(v)
		p.free(v)
	}
	b.addReplica("web-00", "mig-1g.10gb.cleave.dev")
	b.running("web-00")
	b.tick()
	before := b.place("web-00")
	out, err := b.apply(nil, "--replacement-timeout", "30s")
	t.Logf("it ends with %v", err)
	if len(b.replaced) > 0 {
		t.Errorf("web-00 was evicted from %s; repack says:\n%s", before, out)
	}
}
