// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// allocate creates a claim and allocates it by hand.
func (s *space) allocate(ctx context.Context, name string, devices resourceapi.DeviceAllocationResult) *drapb.Claim {
	s.Helper()
	claim, err := env.client.Allocate(ctx, s.name, name, devices)
	s.must(err)
	return claim
}

func TestPrepare_PluginKilled(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.startPlainNode(ctx)
	device := n.deviceNames(ctx)[0]
	holder := s.allocate(ctx, "holder", workload.OneGPU(n.name, device, false))
	before := n.prepared(ctx, holder, 1)
	rival := s.allocate(ctx, "rival", workload.OneGPU(n.name, device, false))
	for range 3 {
		s.must(n.Kill())
		s.must(n.Start(ctx))
		n.waitOffered(ctx, gpus)
		n.refused(ctx, rival, "allocated to claim "+s.name+"/holder")
		if diff := cmp.Diff(before, n.prepared(ctx, holder, 1), protocmp.Transform()); diff != "" {
			t.Errorf("the answer after a restart (-before +after):\n%s", diff)
		}
	}
	s.must(n.Unprepare(ctx, holder))
	s.plugin.waitRecords(ctx, n.Node)
}
