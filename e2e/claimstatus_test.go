// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/claimstatus"
)

// A claim tells what its device is, in each tier, also after its status was lost while no plugin ran.
func TestClaimStatus(t *testing.T) {
	ctx, s := newSpace(t, nil)
	claims := map[string]string{}
	for _, tier := range []struct {
		kind, class string
	}{{"gpu", "gpu.cleave.dev"}, {"mig", "mig-1g.10gb.cleave.dev"}, {"timeslice", "timeslice.cleave.dev"}, {"mps", "mps.cleave.dev"}} {
		s.create(ctx, claimPod(tier.kind, workload.ClaimSpec(tier.class, 1))...)
		claims[tier.kind] = ownClaim(s.pods.running(ctx, tier.kind))
	}
	first := map[string]resourceapi.AllocatedDeviceStatus{}
	for kind, claim := range claims {
		first[kind] = s.waitClaimStatus(ctx, claim, kind)
	}
	// What is lost is written again after a start, and what is there keeps its time.
	_, err := env.kube.ResourceV1().ResourceClaims(s.name).Patch(ctx, claims["mig"], types.MergePatchType,
		[]byte(`{"status":{"devices":null}}`), metav1.PatchOptions{}, "status")
	s.must(err)
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	for kind, claim := range claims {
		again := s.waitClaimStatus(ctx, claim, kind)
		was := first[kind]
		if kind == "mig" {
			was.Conditions, again.Conditions = nil, nil
		}
		if diff := cmp.Diff(was, again); diff != "" {
			t.Errorf("status of the claim for %s after a start (-before +after):\n%s", kind, diff)
		}
	}
}

// waitClaimStatus waits until a claim says that its only device is ready, and checks what the device is.
func (s *space) waitClaimStatus(ctx context.Context, claim, kind string) resourceapi.AllocatedDeviceStatus {
	s.Helper()
	var status resourceapi.AllocatedDeviceStatus
	s.eventually(ctx, "claim "+claim+" to tell its device", func(ctx context.Context) (bool, string, error) {
		found, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, claim, metav1.GetOptions{})
		if err != nil || len(found.Status.Devices) != 1 {
			return false, "no device in the status", err
		}
		status = found.Status.Devices[0]
		return len(status.Conditions) == 1 && status.Conditions[0].Status == metav1.ConditionTrue, status.String(), nil
	})
	var data claimstatus.Device
	s.must(json.Unmarshal(status.Data.Raw, &data))
	if data.Type != kind || data.UUID == "" || data.PCIBusID == "" || data.ProductName == "" || data.Memory == nil {
		s.Errorf("status of the claim for %s: %s", kind, status.Data.Raw)
	}
	if isPartition := kind == "mig"; isPartition != strings.HasPrefix(data.UUID, "MIG-") || isPartition != (data.GPUInstance != nil) {
		s.Errorf("status of the claim for %s: %s", kind, status.Data.Raw)
	}
	return status
}
