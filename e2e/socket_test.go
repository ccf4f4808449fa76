// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
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

// prepared prepares a claim and checks that it has so many devices, each with a CDI name.
func (s *space) prepared(ctx context.Context, n *plainNode, claim *drapb.Claim, count int) []*drapb.Device {
	s.Helper()
	devices, err := n.Prepare(ctx, claim)
	s.must(err)
	if len(devices) != count {
		s.Fatalf("claim %s got %v, want %d devices", claim.Name, devices, count)
	}
	for _, d := range devices {
		want := []string{workload.Driver + "/gpu=" + d.DeviceName}
		if diff := cmp.Diff(want, d.CdiDeviceIds); diff != "" {
			s.Errorf("CDI devices of claim %s (-want +got):\n%s", claim.Name, diff)
		}
	}
	return devices
}

// refused prepares a claim and checks that it is refused with an error that says all that it has to.
func (s *space) refused(ctx context.Context, n *plainNode, claim *drapb.Claim, says ...string) {
	s.Helper()
	devices, err := n.Prepare(ctx, claim)
	if err == nil {
		s.Errorf("claim %s got %v, want an error", claim.Name, devices)
		return
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			s.Errorf("claim %s: the error %q does not say %q", claim.Name, err, part)
		}
	}
}

func TestPrepare_BadClaims(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.startPlainNode(ctx)
	names := s.deviceNames(ctx, n)
	gpu := func(i int) resourceapi.DeviceAllocationResult { return workload.OneGPU(n.name, names[i], false) }

	holder := s.allocate(ctx, "holder", gpu(0))
	first := s.prepared(ctx, n, holder, 1)
	rival := s.allocate(ctx, "rival", gpu(0))
	s.refused(ctx, n, rival, names[0], "allocated to claim "+s.name+"/holder", "exclusive")

	noDevice := s.allocate(ctx, "no-device", workload.OneGPU(n.name, "gpu-0000-00-00-0", false))
	s.refused(ctx, n, noDevice, `"gpu-0000-00-00-0" is not on this node`, names[0], "delete the pod")
	s.refused(ctx, n, s.allocate(ctx, "other-pool", workload.OneGPU("another-node", names[1], false)), `pool "another-node"`, n.name)

	configured := gpu(1)
	configured.Config = opaque(`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"Overclock","megahertz":9000}`)
	s.refused(ctx, n, s.allocate(ctx, "unknown-kind", configured), `"Overclock"`, "from the claim")
	configured.Config = opaque(`{"apiVersion":"gpu.example.com/v1","kind":"GpuConfig"}`)
	s.refused(ctx, n, s.allocate(ctx, "unknown-group", configured), `"gpu.example.com/v1"`, "GpuConfig")
	s.refused(ctx, n, &drapb.Claim{Namespace: s.name, Name: "never-made", Uid: "11111111-2222-3333-4444-555555555555"}, "never-made")
	s.refused(ctx, n, &drapb.Claim{Namespace: s.name, Name: "holder", Uid: "11111111-2222-3333-4444-555555555555"}, "holder")

	mixed := gpu(1)
	mixed.Results = append(mixed.Results, resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: "nics", Device: "nic-0"})
	mixed.Config = opaque(`{"apiVersion":"nic.example.com/v1","kind":"Anything"}`)
	mixed.Config[0].Opaque.Driver = "nic.example.com"
	served := s.prepared(ctx, n, s.allocate(ctx, "mixed", mixed), 1)
	if served[0].DeviceName != names[1] || served[0].PoolName != n.name {
		t.Errorf("a claim of two drivers got %v, want %s alone", served, names[1])
	}

	s.waitRecords(ctx, n.Node, "holder", "mixed")
	if diff := cmp.Diff(first, s.prepared(ctx, n, holder, 1), protocmp.Transform()); diff != "" {
		t.Errorf("the answer to a claim that is prepared already (-first +second):\n%s", diff)
	}
	s.must(n.Unprepare(ctx, holder))
	s.must(n.Unprepare(ctx, holder))
	s.prepared(ctx, n, rival, 1)
	s.waitRecords(ctx, n.Node, "mixed", "rival")
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
	names := s.deviceNames(ctx, n)
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
	s.waitRecords(ctx, n.Node, "claim-0", "claim-1", "claim-3")
	undo := &drapb.NodeUnprepareResourcesRequest{Claims: append(all.Claims, &drapb.Claim{Namespace: s.name, Name: "unknown", Uid: "11111111-2222-3333-4444-555555555555"})}
	undone, err := n.API.NodeUnprepareResources(ctx, undo)
	s.must(err)
	for _, claim := range undo.Claims {
		if one := undone.Claims[claim.Uid]; one == nil || one.Error != "" {
			t.Errorf("unprepare of claim %s gives %v, want no error", claim.Name, one)
		}
	}
	s.waitRecords(ctx, n.Node)
}

func TestPrepare_AdminAccess(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"})
	n := s.startPlainNode(ctx)
	device := s.deviceNames(ctx, n)[0]
	holder := s.allocate(ctx, "holder", workload.OneGPU(n.name, device, false))
	before := s.prepared(ctx, n, holder, 1)
	admin := s.allocate(ctx, "admin", workload.OneGPU(n.name, device, true))
	s.prepared(ctx, n, admin, 1)
	s.waitRecords(ctx, n.Node, "admin", "holder")
	if diff := cmp.Diff(before, s.prepared(ctx, n, holder, 1), protocmp.Transform()); diff != "" {
		t.Errorf("the holder's devices (-before +with the admin's claim):\n%s", diff)
	}
	s.refused(ctx, n, s.allocate(ctx, "rival", workload.OneGPU(n.name, device, false)), "allocated to claim "+s.name+"/holder")
	s.must(n.Unprepare(ctx, holder))
	// With the holder gone the GPU is free, whoever looks at it.
	s.prepared(ctx, n, s.allocate(ctx, "next", workload.OneGPU(n.name, device, false)), 1)
	s.must(n.Unprepare(ctx, admin))
	s.waitRecords(ctx, n.Node, "next")
}

func TestPrepare_PluginKilled(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	n := s.startPlainNode(ctx)
	device := s.deviceNames(ctx, n)[0]
	holder := s.allocate(ctx, "holder", workload.OneGPU(n.name, device, false))
	before := s.prepared(ctx, n, holder, 1)
	rival := s.allocate(ctx, "rival", workload.OneGPU(n.name, device, false))
	for range 3 {
		s.must(n.Kill())
		s.must(n.Start(ctx))
		s.offers(ctx, n, gpus)
		s.refused(ctx, n, rival, "allocated to claim "+s.name+"/holder")
		if diff := cmp.Diff(before, s.prepared(ctx, n, holder, 1), protocmp.Transform()); diff != "" {
			t.Errorf("the answer after a restart (-before +after):\n%s", diff)
		}
	}
	s.must(n.Unprepare(ctx, holder))
	s.waitRecords(ctx, n.Node)
}
