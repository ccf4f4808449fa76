// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

func TestPolicy_LabelChanged(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	dir := s.plugin.usePolicies(ctx, "training", map[string]string{
		"training":  "[{tiers: [exclusive]}]",
		"inference": "[{tiers: [timeSlice], timeSlice: {shares: 2}}]",
	})
	s.published.waitOffer(ctx, name, "gpu=8")
	trains := s.pods.run(ctx, gpuPod("trains", 1))
	allocated := s.pods.device(ctx, trains)

	s.plugin.selectPolicy(ctx, "inference")
	s.published.waitOffer(ctx, name, "gpu!=1 timeslice=8")
	if d := find(s.published.gpus(ctx), allocated); d == nil {
		t.Errorf("GPU %s, which is allocated, is not published", allocated)
	}
	s.events.waitOnNode(ctx, name, corev1.EventTypeNormal, "PolicyApplied", `policy "inference" is active`)
	s.plugin.waitMetric(ctx, env.node, `cleave_policy_info{policy="inference"}`, "1")
	s.plugin.waitMetric(ctx, env.node, `cleave_policy_info{policy="training"}`, "")
	s.create(ctx, gpuPod("waits", 1)...)
	s.pods.unschedulable(ctx, "waits")
	shares := s.pods.run(ctx, claimPod("shares", shareSpec(timeSliceClass)))
	if shared := s.pods.device(ctx, shares); shared == allocated+"-timeslice" {
		t.Errorf("a share is of %s, which another claim has whole", allocated)
	}
	s.pods.checkUndisturbed(ctx, trains)
	s.pods.delete(ctx, "trains")
	s.published.waitOffer(ctx, name, "timeslice=8")

	s.plugin.writePolicy(dir, "inference", "[{tiers: [timeSlice], timeSlice: {shares: 3}}]")
	s.eventually(ctx, "three shares of each GPU", func(ctx context.Context) (bool, string, error) {
		for _, d := range s.published.devices(ctx, name) {
			if shares := d.Capacity["shares"].Value; shares.Value() != 3 {
				return false, d.Name + " has " + shares.String(), nil
			}
		}
		return true, "", nil
	})
	s.pods.checkUndisturbed(ctx, shares)
	s.plugin.selectPolicy(ctx, "training")
	s.published.waitOffer(ctx, name, "gpu=8 timeslice!=1")
	s.pods.running(ctx, "waits")
	s.plugin.checkRecords(ctx)
}

func TestPolicy_Invalid(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	dir := s.plugin.usePolicies(ctx, "training", map[string]string{"training": "[{tiers: [exclusive]}]"})
	s.published.waitOffer(ctx, name, "gpu=8")
	before := s.pods.run(ctx, gpuPod("before", 1))

	steps := []struct {
		what string
		do   func()
		says string
	}{
		{"a name that is none", func() { s.plugin.selectPolicy(ctx, "trainning") }, `there is no policy "trainning": choose one of training; policy "training" stays active`},
		{"a file with a slip", func() {
			s.plugin.writePolicy(dir, "training", "[{tires: [exclusive]}]")
			s.plugin.selectPolicy(ctx, "training")
		}, "tires"},
		{"what does not fit", func() { s.plugin.writePolicy(dir, "training", "[{tiers: [mig], mig: {layout: {3g.40gb: 3}}}]") }, `policy "training" does not fit this node`},
	}
	for _, step := range steps {
		step.do()
		s.events.waitOnNode(ctx, name, corev1.EventTypeWarning, "InvalidPolicy", step.says)
		s.plugin.waitMetric(ctx, env.node, "cleave_policy_invalid", "1")
		s.plugin.waitMetric(ctx, env.node, `cleave_policy_info{policy="training"}`, "1")
		if got := offerOf(s.published.slices(ctx, name)); got != "gpu=8" {
			t.Errorf("with %s the node offers %q", step.what, got)
		}
		s.must(env.node.Readiness(ctx))
	}
	s.published.waitOrder(ctx, lastAllocated)
	published := s.published.slices(ctx, name)
	s.must(env.node.Kill())
	s.plugin.start(ctx)
	s.plugin.waitMetric(ctx, env.node, "cleave_policy_invalid", "1")
	versions := func(all []resourceapi.ResourceSlice) (versions []string) {
		for _, slice := range all {
			versions = append(versions, slice.Name+" "+slice.ResourceVersion)
		}
		return versions
	}
	if diff := cmp.Diff(versions(published), versions(s.published.slices(ctx, name))); diff != "" {
		t.Errorf("slices were written, though the active policy is the same (-before +after):\n%s", diff)
	}
	s.pods.run(ctx, gpuPod("meanwhile", 1))
	s.pods.checkUndisturbed(ctx, before)

	s.plugin.writePolicy(dir, "training", "[{tiers: [exclusive]}]")
	s.plugin.waitMetric(ctx, env.node, "cleave_policy_invalid", "0")
	s.events.waitOnNode(ctx, name, corev1.EventTypeNormal, "PolicyApplied", `policy "training" is active`)
}

func TestPolicy_DevicePluginConflict(t *testing.T) {
	ctx, s := newSpace(t)
	name := env.cluster.NodeName()
	const alone = "gpu=8 mig=200 mps=8 timeslice=8"
	s.published.waitOffer(ctx, name, alone) // a plugin that was just restarted may still publish
	before := s.pods.run(ctx, gpuPod("before", 1))
	advertise := func(ctx context.Context, quantity any) {
		resources := map[string]any{"nvidia.com/gpu": quantity}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": resources, "allocatable": resources}})
		s.must(err)
		_, err = env.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		s.must(err)
	}
	atEnd(s.T, func(ctx context.Context) {
		advertise(ctx, nil)
		s.published.waitOffer(ctx, name, alone)
	})
	advertise(ctx, "8")
	s.published.waitOffer(ctx, name, "gpu#=1 mig#=25 mps#=1 timeslice#=1")
	if d := find(s.published.gpus(ctx), s.pods.device(ctx, before)); d == nil {
		t.Error("the GPU that is allocated is not published")
	}
	const says = "a device plugin offers GPUs of this node (status.capacity has nvidia.com/gpu: 8)"
	s.events.waitOnNode(ctx, name, corev1.EventTypeWarning, "GPUConflict", says)
	s.plugin.waitMetric(ctx, env.node, "cleave_conflict", "1")
	if err := env.node.Readiness(ctx); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("readiness says %v, want who else offers GPUs", err)
	}
	s.create(ctx, gpuPod("waits", 1)...)
	s.pods.unschedulable(ctx, "waits")
	s.pods.delete(ctx, "before")
	s.published.waitOffer(ctx, name, "")
	// A restart finds it out before it publishes anything.
	s.must(env.node.Stop())
	s.must(env.node.Start(ctx))
	s.plugin.waitReadiness(ctx, says)
	s.published.waitOffer(ctx, name, "")
	advertise(ctx, "0")
	s.published.waitOffer(ctx, name, alone)
	s.must(env.node.WaitReady(ctx))
	s.events.waitOnNode(ctx, name, corev1.EventTypeNormal, "GPUConflictResolved", "they are published")
	s.pods.running(ctx, "waits")
}

func TestPolicy_DriverConflict(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	dir := t.TempDir()
	s.plugin.writePolicy(dir, "default", "[{tiers: [exclusive]}]")
	n := s.newPlainNode(ctx, nil, "--policy", dir)
	n.sim(ctx, "create", "--node", "l40s")
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 4)
	first := n.deviceNames(ctx)[0]
	device := find(s.published.devices(ctx, n.name), first)
	address := device.Attributes["resource.kubernetes.io/pciBusID"]
	other := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.name + "-other"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &n.name, Pool: resourceapi.ResourcePool{Name: n.name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "theirs", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pciBusID": address}}},
	}}
	_, err := env.kube.ResourceV1().ResourceSlices().Create(ctx, other, metav1.CreateOptions{})
	s.must(err)
	ours := func(ctx context.Context) string {
		return offerOf(slices.DeleteFunc(s.published.slices(ctx, n.name), func(o resourceapi.ResourceSlice) bool { return o.Spec.Driver != v1alpha1.Group }))
	}
	waitOurs := func(want string) {
		t.Helper()
		s.eventually(ctx, "the plugin of "+n.name+" to offer "+want, func(ctx context.Context) (bool, string, error) {
			got := ours(ctx)
			return got == want, got, nil
		})
	}
	waitOurs("")
	s.events.waitOnNode(ctx, n.name, corev1.EventTypeWarning, "GPUConflict", fmt.Sprintf("driver gpu.example.com has GPU %s as device theirs", *address.StringValue))
	s.plugin.writePolicy(dir, "default", fmt.Sprintf("[{match: {pciAddresses: [%q]}, exclude: true}, {tiers: [exclusive]}]", *address.StringValue))
	waitOurs("gpu=3")
	s.plugin.writePolicy(dir, "default", "[{tiers: [exclusive]}]")
	waitOurs("")
	s.must(env.kube.ResourceV1().ResourceSlices().Delete(ctx, other.Name, metav1.DeleteOptions{}))
	waitOurs("gpu=4")
}
