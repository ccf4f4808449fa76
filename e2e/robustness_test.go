// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// event waits for a warning about a pod.
func (s *space) event(ctx context.Context, pod, reason string) {
	s.Helper()
	s.eventually(ctx, "event "+reason+" on pod "+pod, func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
		if err != nil {
			return false, "", err
		}
		var seen []string
		for _, e := range list.Items {
			seen = append(seen, e.Reason)
		}
		return slices.Contains(seen, reason), fmt.Sprint(seen), nil
	})
}

// checkUndisturbed checks that the containers of a pod are the same as before.
func (s *space) checkUndisturbed(ctx context.Context, before *corev1.Pod) {
	s.Helper()
	after := s.running(ctx, before.Name)
	// What the kubelet knows of their devices' health comes and goes with the plugin.
	ignored := cmpopts.IgnoreFields(corev1.ContainerStatus{}, "AllocatedResourcesStatus")
	if diff := cmp.Diff(before.Status.ContainerStatuses, after.Status.ContainerStatuses, ignored); diff != "" {
		s.Errorf("containers of pod %s (-before +after):\n%s", before.Name, diff)
	}
}

func TestPlugin_Killed(t *testing.T) {
	ctx, s := newSpace(t, nil)
	for _, name := range []string{"stays", "deleted-meanwhile"} {
		s.create(ctx, gpuPod(name, 1)...)
	}
	stays, deleted := s.running(ctx, "stays"), s.running(ctx, "deleted-meanwhile")
	s.must(env.node.Kill())
	s.create(ctx, gpuPod("created-meanwhile", 2)...)
	s.event(ctx, "created-meanwhile", "FailedPrepareDynamicResources")
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, deleted.Name, metav1.DeleteOptions{}))
	s.eventually(ctx, "the container of pod deleted-meanwhile to end", func(ctx context.Context) (bool, string, error) {
		pod, err := env.kube.CoreV1().Pods(s.name).Get(ctx, deleted.Name, metav1.GetOptions{})
		return err == nil && pod.Status.ContainerStatuses[0].State.Terminated != nil, "running", err
	})
	s.waitRecords(ctx, env.node, ownClaim(stays), ownClaim(deleted))

	s.startPlugin(ctx)
	created := s.running(ctx, "created-meanwhile")
	s.checkSees(ctx, created, s.devices(ctx, created))
	s.gone(ctx, deleted.Name)
	s.waitRecords(ctx, env.node, ownClaim(stays), ownClaim(created))
	s.checkUndisturbed(ctx, stays)
	s.checkRecordsAgree(ctx)
}

func TestPlugin_Stopped(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.waitOrder(ctx, lastFirst)
	s.create(ctx, gpuPod("stays", 1)...)
	stays := s.running(ctx, "stays")
	s.waitOrder(ctx, lastHeld)
	before := s.slices(ctx, env.cluster.NodeName())
	if err := env.node.Stop(); err != nil {
		t.Errorf("the plugin ends with %v on SIGTERM, want exit status 0; its log ends with:\n%s", err, env.node.LogTail(15))
	}
	s.startPlugin(ctx)
	if diff := cmp.Diff(before, s.slices(ctx, env.cluster.NodeName())); diff != "" {
		t.Errorf("a restart changed what is published (-before +after):\n%s", diff)
	}
	s.checkUndisturbed(ctx, stays)
	s.create(ctx, gpuPod("after", 1)...)
	after := s.running(ctx, "after")
	s.checkSees(ctx, after, s.devices(ctx, after))
	s.checkRecordsAgree(ctx)
}

func TestKubelet_Restarted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(strings.ReplaceAll(sig.String(), " ", "-"), func(t *testing.T) {
			ctx, s := newSpace(t, nil)
			s.waitOrder(ctx, lastFirst)
			s.create(ctx, gpuPod("before", 1)...)
			before := s.running(ctx, "before")
			s.waitOrder(ctx, lastHeld)
			t.Cleanup(func() {
				if t.Failed() {
					_ = env.cluster.StartKubelet(context.WithoutCancel(ctx)) // if it runs this says so
				}
			})
			published := s.slices(ctx, env.cluster.NodeName())
			s.must(env.cluster.RestartKubelet(ctx, sig))
			s.must(env.cluster.Healthy(ctx))
			s.waitSlices(ctx, published)
			s.create(ctx, gpuPod("after", 1)...)
			after := s.running(ctx, "after")
			s.checkSees(ctx, after, s.devices(ctx, after))
			s.must(env.node.WaitReady(ctx))
			s.checkUndisturbed(ctx, before)
			s.checkRecordsAgree(ctx)
			s.delete(ctx, "before")
			s.waitRecords(ctx, env.node, ownClaim(after))
		})
	}
}

// The plugin compares its records with the API server when it starts, so a GPU comes free also where nobody asks for it.
func TestPlugin_StartReleasesUnclaimed(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.create(ctx, gpuPod("gone", 1)...)
	claim := ownClaim(s.running(ctx, "gone"))
	s.must(env.node.Kill())
	s.must(env.cluster.StopKubelet(ctx, syscall.SIGKILL))
	published := s.slices(ctx, env.cluster.NodeName())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.must(env.cluster.StartKubelet(ctx))
		s.waitSlices(ctx, published)
	})
	now := int64(0)
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, "gone", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	s.eventually(ctx, "the claim to go", func(ctx context.Context) (bool, string, error) {
		_, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, claim, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		return false, "there", err
	})
	s.waitRecords(ctx, env.node, claim)
	s.must(env.node.Start(ctx))
	// Sooner than the next comparison, which is minutes away.
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	s.waitRecords(ctx, env.node)
}

// waitSlices waits until the slices of the cluster's node are others than before: a kubelet that starts removes them,
// as it does not know yet whether their driver is there, and the plugin makes them again.
func (s *space) waitSlices(ctx context.Context, before []resourceapi.ResourceSlice) {
	s.Helper()
	old := map[types.UID]bool{}
	for _, slice := range before {
		old[slice.UID] = true
	}
	s.eventually(ctx, "the plugin to publish again", func(ctx context.Context) (bool, string, error) {
		now := s.slices(ctx, env.cluster.NodeName())
		kept := slices.ContainsFunc(now, func(slice resourceapi.ResourceSlice) bool { return old[slice.UID] })
		complete := len(now) > 0 && int64(len(now)) == now[0].Spec.Pool.ResourceSliceCount
		return !kept && complete && len(wholeGPUs(now)) == gpus, fmt.Sprintf("%d slices, old ones: %t", len(now), kept), nil
	})
}

// checkRecordsAgree checks that the plugin's records are those of all claims that are allocated and in use, device by
// device.
func (s *space) checkRecordsAgree(ctx context.Context) {
	s.Helper()
	list, err := env.kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	s.must(err)
	want, got := map[string][]string{}, map[string][]string{}
	for _, c := range list.Items {
		if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			want[string(c.UID)] = append(want[string(c.UID)], r.Device)
		}
	}
	all, err := readRecords(env.node)
	s.must(err)
	for uid, r := range all {
		for _, d := range r.Devices {
			got[uid] = append(got[uid], d.Device)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Errorf("devices by claim (-API server +records):\n%s", diff)
	}
}
