// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
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

func TestPrepare_BadClaims(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.startPlainNode(ctx)
	names := n.deviceNames(ctx)
	gpu := func(i int) resourceapi.DeviceAllocationResult { return workload.OneGPU(n.name, names[i], false) }

	holder := s.allocate(ctx, "holder", gpu(0))
	first := n.prepared(ctx, holder, 1)
	rival := s.allocate(ctx, "rival", gpu(0))
	n.refused(ctx, rival, names[0], "allocated to claim "+s.name+"/holder", "exclusive")

	noDevice := s.allocate(ctx, "no-device", workload.OneGPU(n.name, "gpu-0000-00-00-0", false))
	n.refused(ctx, noDevice, `"gpu-0000-00-00-0" is not on this node`, names[0], "delete the pod")
	n.refused(ctx, s.allocate(ctx, "other-pool", workload.OneGPU("another-node", names[1], false)), `pool "another-node"`, n.name)

	configured := gpu(1)
	configured.Config = opaque(`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"Overclock","megahertz":9000}`)
	n.refused(ctx, s.allocate(ctx, "unknown-kind", configured), `"Overclock"`, "from the claim")
	configured.Config = opaque(`{"apiVersion":"gpu.example.com/v1","kind":"GpuConfig"}`)
	n.refused(ctx, s.allocate(ctx, "unknown-group", configured), `"gpu.example.com/v1"`, "GpuConfig")
	n.refused(ctx, &drapb.Claim{Namespace: s.name, Name: "never-made", Uid: "11111111-2222-3333-4444-555555555555"}, "never-made")
	n.refused(ctx, &drapb.Claim{Namespace: s.name, Name: "holder", Uid: "11111111-2222-3333-4444-555555555555"}, "holder")

	mixed := gpu(1)
	mixed.Results = append(mixed.Results, resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: "nics", Device: "nic-0"})
	mixed.Config = opaque(`{"apiVersion":"nic.example.com/v1","kind":"Anything"}`)
	mixed.Config[0].Opaque.Driver = "nic.example.com"
	served := n.prepared(ctx, s.allocate(ctx, "mixed", mixed), 1)
	if served[0].DeviceName != names[1] || served[0].PoolName != n.name {
		t.Errorf("a claim of two drivers got %v, want %s alone", served, names[1])
	}

	s.plugin.waitRecords(ctx, n.Node, "holder", "mixed")
	if diff := cmp.Diff(first, n.prepared(ctx, holder, 1), protocmp.Transform()); diff != "" {
		t.Errorf("the answer to a claim that is prepared already (-first +second):\n%s", diff)
	}
	s.must(n.Unprepare(ctx, holder))
	s.must(n.Unprepare(ctx, holder))
	n.prepared(ctx, rival, 1)
	s.plugin.waitRecords(ctx, n.Node, "mixed", "rival")
}

// opaque are parameters for Cleave in a claim.
func opaque(parameters string) []resourceapi.DeviceAllocationConfiguration {
	return []resourceapi.DeviceAllocationConfiguration{{
		Source:              resourceapi.AllocationConfigSourceClaim,
		DeviceConfiguration: workload.Parameters(workload.Driver, []byte(parameters)),
	}}
}

func TestPrepare_ClaimsOfOneCall(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.startPlainNode(ctx)
	names := n.deviceNames(ctx)
	all := &drapb.NodePrepareResourcesRequest{}
	for i, device := range []string{names[0], names[1], "gpu-0000-00-00-0", names[2]} {
		all.Claims = append(all.Claims, s.allocate(ctx, fmt.Sprintf("claim-%d", i), workload.OneGPU(n.name, device, false)))
	}
	answer, err := n.API.NodePrepareResources(ctx, all)
	s.must(err)
	for i, claim := range all.Claims {
		one := answer.Claims[claim.Uid]
		if i == 2 && (one.GetError() == "" || len(one.GetDevices()) != 0) || i != 2 && (one.GetError() != "" || len(one.GetDevices()) != 1) {
			t.Errorf("claim %d got %v; the third alone was to fail", i, one)
		}
	}
	s.plugin.waitRecords(ctx, n.Node, "claim-0", "claim-1", "claim-3")
	undo := &drapb.NodeUnprepareResourcesRequest{Claims: append(all.Claims, &drapb.Claim{Namespace: s.name, Name: "unknown", Uid: "11111111-2222-3333-4444-555555555555"})}
	undone, err := n.API.NodeUnprepareResources(ctx, undo)
	s.must(err)
	for _, claim := range undo.Claims {
		if one := undone.Claims[claim.Uid]; one == nil || one.Error != "" {
			t.Errorf("unprepare of claim %s gives %v, want no error", claim.Name, one)
		}
	}
	s.plugin.waitRecords(ctx, n.Node)
}

func TestPrepare_AdminAccess(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
	n := s.startPlainNode(ctx)
	device := n.deviceNames(ctx)[0]
	holder := s.allocate(ctx, "holder", workload.OneGPU(n.name, device, false))
	before := n.prepared(ctx, holder, 1)
	admin := s.allocate(ctx, "admin", workload.OneGPU(n.name, device, true))
	n.prepared(ctx, admin, 1)
	s.plugin.waitRecords(ctx, n.Node, "admin", "holder")
	if diff := cmp.Diff(before, n.prepared(ctx, holder, 1), protocmp.Transform()); diff != "" {
		t.Errorf("the holder's devices (-before +with the admin's claim):\n%s", diff)
	}
	n.refused(ctx, s.allocate(ctx, "rival", workload.OneGPU(n.name, device, false)), "allocated to claim "+s.name+"/holder")
	s.must(n.Unprepare(ctx, holder))
	// With the holder gone the GPU is free, whoever looks at it.
	n.prepared(ctx, s.allocate(ctx, "next", workload.OneGPU(n.name, device, false)), 1)
	s.must(n.Unprepare(ctx, admin))
	s.plugin.waitRecords(ctx, n.Node, "next")
}

func TestPrepare_PluginKilled(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
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
