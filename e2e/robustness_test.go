// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/cluster"
	processtable "github.com/cleave-dra/cleave/pkg/driver/processes"
	"github.com/google/go-cmp/cmp"
)

func TestPlugin_Stopped(t *testing.T) {
	ctx, s := newSpace(t)
	s.published.waitOrder(ctx, lastFirst)
	stays := s.pods.run(ctx, gpuPod("stays", 1))
	s.published.waitOrder(ctx, lastAllocated)
	before := s.published.slices(ctx, env.cluster.NodeName())
	if err := env.node.Stop(); err != nil {
		t.Errorf("the plugin ends with %v on SIGTERM, want exit status 0; its log ends with:\n%s", err, env.node.LogTail(15))
	}
	s.plugin.start(ctx)
	if diff := cmp.Diff(before, s.published.slices(ctx, env.cluster.NodeName())); diff != "" {
		t.Errorf("a restart changed what is published (-before +after):\n%s", diff)
	}
	s.pods.checkUndisturbed(ctx, stays)
	after := s.pods.run(ctx, gpuPod("after", 1))
	s.pods.checkSees(ctx, after, s.pods.devices(ctx, after))
	s.plugin.checkRecords(ctx)
}

func TestKubelet_Restarted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(strings.ReplaceAll(sig.String(), " ", "-"), func(t *testing.T) {
			ctx, s := newSpace(t)
			s.published.waitOrder(ctx, lastFirst)
			before := s.pods.run(ctx, gpuPod("before", 1))
			s.published.waitOrder(ctx, lastAllocated)
			t.Cleanup(func() {
				if t.Failed() {
					_ = env.cluster.Component(cluster.Kubelet).Start(context.WithoutCancel(ctx)) // if it runs this says so
				}
			})
			published := s.published.slices(ctx, env.cluster.NodeName())
			s.must(env.cluster.Component(cluster.Kubelet).Restart(ctx, sig))
			s.eventually(ctx, "the cluster to be healthy", func(ctx context.Context) (bool, string, error) {
				err := env.cluster.Healthy(ctx)
				return err == nil, fmt.Sprint(err), nil
			})
			s.published.waitReplaced(ctx, published)
			after := s.pods.run(ctx, gpuPod("after", 1))
			s.pods.checkSees(ctx, after, s.pods.devices(ctx, after))
			s.must(env.node.WaitReady(ctx))
			s.pods.checkUndisturbed(ctx, before)
			s.plugin.checkRecords(ctx)
			s.pods.delete(ctx, "before")
			s.plugin.waitRecords(ctx, env.node, ownClaim(after))
		})
	}
}

// The plugin compares its records with the API server when it starts, so a GPU comes free also where nobody asks for it.
func TestPlugin_StartReleasesUnclaimed(t *testing.T) {
	ctx, s := newSpace(t)
	pod := s.pods.run(ctx, gpuPod("gone", 1))
	claim := ownClaim(pod)
	s.must(env.node.Kill())
	s.must(env.cluster.Component(cluster.Kubelet).Stop(ctx, syscall.SIGKILL))
	published := s.published.slices(ctx, env.cluster.NodeName())
	atEnd(s.T, func(ctx context.Context) {
		s.must(env.cluster.Component(cluster.Kubelet).Start(ctx))
		s.published.waitReplaced(ctx, published)
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
	s.plugin.waitRecords(ctx, env.node, claim)
	pids, err := processtable.Host().OfPods(ctx, []types.UID{pod.UID}) // as long as they run, the claim keeps its GPU
	s.must(err)
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it ends with its container's first process
			s.must(err)
		}
	}
	s.eventually(ctx, "the pod's processes to end", func(ctx context.Context) (bool, string, error) {
		left, err := processtable.Host().OfPods(ctx, []types.UID{pod.UID})
		return err == nil && len(left) == 0, fmt.Sprint(left), err
	})
	s.must(env.node.Start(ctx))
	// Sooner than the next comparison, which is minutes away.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	s.plugin.waitRecords(ctx, env.node)
}
