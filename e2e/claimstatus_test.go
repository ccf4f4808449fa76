// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
)

// A claim shows what its device is, in each tier, also after its status was lost while no plugin ran, and its container sees the same
// in a variable and in a file.
func TestClaimStatus(t *testing.T) {
	ctx, s := newSpace(t)
	claims := map[string]string{}
	for _, tier := range workload.Tiers {
		s.create(ctx, tier.Template(tier.Type), workload.Pod(tier.Type, tier.Type))
		claims[tier.Type] = ownClaim(s.pods.running(ctx, tier.Type))
	}
	first := map[string]resourceapi.AllocatedDeviceStatus{}
	for kind, claim := range claims {
		first[kind] = s.waitClaimStatus(ctx, claim, kind)
		s.checkKnown(ctx, s.pods.running(ctx, kind), first[kind])
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
	for _, tier := range workload.Tiers {
		s.pods.delete(ctx, tier.Type)
	}
	s.plugin.waitRecords(ctx, env.node)
	left, err := filepath.Glob(filepath.Join(env.cluster.CDIDir(), "*_metadata_*"))
	s.must(err)
	if len(left) > 0 {
		t.Errorf("device metadata is left: %v", left)
	}
}

// A plugin that is killed between Prepare and the status writes that after its start.
func TestClaimStatus_KilledAfterPrepare(t *testing.T) {
	ctx, s := newSpace(t)
	for _, tier := range workload.Tiers {
		before, err := readRecords(env.node)
		s.must(err)
		s.create(ctx, tier.Template(tier.Type), workload.Pod(tier.Type, tier.Type))
		s.eventually(ctx, "the claim of pod "+tier.Type+" to be prepared", func(context.Context) (bool, string, error) {
			now, err := readRecords(env.node)
			return err == nil && len(now) > len(before), "", err
		})
		s.must(env.node.Kill())
		s.plugin.start(ctx)
		pod := s.pods.running(ctx, tier.Type)
		s.checkKnown(ctx, pod, s.waitClaimStatus(ctx, ownClaim(pod), tier.Type))
	}
}

// A container with several GPUs of a request has all of them in CLEAVE_GPU_UUID.
func TestClaimStatus_SeveralGPUs(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, gpuPod("three", 3))
	claim, allocation := s.pods.ownClaim(ctx, pod)
	published := s.published.devices(ctx, env.cluster.NodeName())
	var uuids []string
	for _, r := range allocation.Devices.Results {
		uuids = append(uuids, *find(published, r.Device).Attributes["uuid"].StringValue)
	}
	want := []string{"CLEAVE_GPU_UUID=" + strings.Join(uuids, ",")}
	if diff := cmp.Diff(want, s.pods.environment(ctx, pod, "CLEAVE_GPU_UUID=")); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	s.pods.delete(ctx, "three")
	s.plugin.waitRecords(ctx, env.node)
	left, err := filepath.Glob(filepath.Join(env.cluster.CDIDir(), "*"+claim.Uid+"*"))
	s.must(err)
	if len(left) > 0 {
		t.Errorf("specs are left: %v", left)
	}
}

// checkKnown checks that the container of a pod with one device knows the device as its claim does.
func (s *space) checkKnown(ctx context.Context, pod *corev1.Pod, status resourceapi.AllocatedDeviceStatus) {
	s.Helper()
	var data v1alpha1.DeviceStatus
	s.must(json.Unmarshal(status.Data.Raw, &data))
	if diff := cmp.Diff([]string{"CLEAVE_GPU_UUID=" + data.UUID}, s.pods.environment(ctx, pod, "CLEAVE_GPU_UUID=")); diff != "" {
		s.Errorf("environment of pod %s (-want +got):\n%s", pod.Name, diff)
	}
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod.Name, "--", "sh", "-c",
		"cat /var/run/kubernetes.io/dra-device-attributes/*/*/*/gpu.cleave.dev-metadata.json")
	s.must(err)
	var metadata metadatav1beta1.DeviceMetadata
	s.must(json.Unmarshal([]byte(out), &metadata))
	if len(metadata.Requests) != 1 || len(metadata.Requests[0].Devices) != 1 {
		s.Fatalf("device metadata of pod %s: %s", pod.Name, out)
	}
	want := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, a := range claimstatus.Attributes(&data) {
		want[resourceapi.QualifiedName(name)] = a
	}
	if diff := cmp.Diff(want, metadata.Requests[0].Devices[0].Attributes); diff != "" {
		s.Errorf("device metadata of pod %s (-want +got):\n%s", pod.Name, diff)
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
	var data v1alpha1.DeviceStatus
	s.must(json.Unmarshal(status.Data.Raw, &data))
	if data.Type != kind || data.UUID == "" || data.PCIBusID == "" || data.ProductName == "" || data.Memory == nil || data.PCIeRoot == "" || data.NUMANode == nil {
		s.Errorf("status of the claim for %s: %s", kind, status.Data.Raw)
	}
	if isPartition := kind == "mig"; isPartition != strings.HasPrefix(data.UUID, "MIG-") || isPartition != (data.GPUInstance != nil) {
		s.Errorf("status of the claim for %s: %s", kind, status.Data.Raw)
	}
	return status
}
