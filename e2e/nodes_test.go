// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// The Node object is deleted and made anew. The slices of the plugin are deleted with the first one: it restarts itself, since it knows
// the UID of its Node from its start, and publishes them as the second's. A claim that is prepared stays so.
func TestNodes_Recreated(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.startPlainNode(ctx)
	before := n.deviceNames(ctx)
	claim := s.allocate(ctx, "kept", workload.OneGPU(n.name, before[0], false))
	n.prepared(ctx, claim, 1)
	s.must(workload.RecreateNode(ctx, env.kube, n.name))
	n.waitOffered(ctx, gpus)
	after := n.deviceNames(ctx)
	slices.Sort(before)
	slices.Sort(after)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("devices (-before +after):\n%s", diff)
	}
	s.plugin.waitRecords(ctx, n.Node, claim.Name)
	s.must(n.Unprepare(ctx, claim))
	s.plugin.waitRecords(ctx, n.Node)
}
