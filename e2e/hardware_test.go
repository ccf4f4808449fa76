// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

func TestHardware_GPUReplaced(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.startPlainNode(ctx)
	device := n.deviceNames(ctx)[0]
	uuid := func() string {
		return *find(s.published.devices(ctx, n.name), device).Attributes["uuid"].StringValue
	}
	before, now := uuid(), "GPU-00000000-1111-2222-3333-444444444444"
	claim := s.allocate(ctx, "claim", workload.OneGPU(n.name, device, false))

	n.sim(ctx, "fault", "--gpu", n.index(ctx, device), "--uuid", now)
	n.refused(ctx, claim, before, now)
	n.prepared(ctx, s.allocate(ctx, "other", workload.OneGPU(n.name, n.deviceNames(ctx)[1], false)), 1)
	s.plugin.waitRecords(ctx, n.Node, "other")
	// It is found without a restart.
	s.eventually(ctx, "the new GPU to be published", func(context.Context) (bool, string, error) { return uuid() == now, uuid(), nil })
	n.waitOffered(ctx, gpus)
	n.prepared(ctx, claim, 1)
}

func TestHardware_DriverMissing(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.startPlainNode(ctx, "--driver-retry", "200ms")
	claim := s.allocate(ctx, "claim", workload.OneGPU(n.name, n.deviceNames(ctx)[0], false))
	n.prepared(ctx, claim, 1)
	s.must(n.Stop())
	away := n.Root() + ".away"
	s.must(errors.Join(os.Rename(n.Root(), away), os.Mkdir(n.Root(), 0o755)))

	s.must(n.Start(ctx))
	missing := "libnvidia-ml.so.1 not found under " + n.Root()
	s.eventually(ctx, "/readyz to name the library and the driver root", func(ctx context.Context) (bool, string, error) {
		state := fmt.Sprint(n.Readiness(ctx))
		return strings.Contains(state, missing) && strings.Contains(state, "--driver-root"), state, nil
	})
	if log := n.LogTail(30); !strings.Contains(log, missing) {
		t.Errorf("the log does not say %q:\n%s", missing, log)
	}
	s.events.waitOnNode(ctx, n.name, corev1.EventTypeWarning, "WaitingForDriver", missing)
	n.refused(ctx, claim, "cannot be used yet", missing)
	s.must(n.Unprepare(ctx, claim))
	s.plugin.waitRecords(ctx, n.Node)

	pid := n.PID()
	s.must(errors.Join(os.Remove(n.Root()), os.Rename(away, n.Root())))
	n.waitOffered(ctx, gpus)
	n.prepared(ctx, claim, 1)
	if n.PID() != pid {
		t.Error("the plugin was started again")
	}
}

func TestHardware_GPUInUse(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.startPlainNode(ctx, "--reconcile-every", "200ms")
	device := n.deviceNames(ctx)[0]
	idle := n.deviceNames(ctx)[1]
	n.prepared(ctx, s.allocate(ctx, "used", workload.OneGPU(n.name, device, false)), 1)
	n.prepared(ctx, s.allocate(ctx, "idle", workload.OneGPU(n.name, idle, false)), 1)
	n.sim(ctx, "client", "add", "--gpu", n.index(ctx, device), "--pid", fmt.Sprint(os.Getpid()))
	claims := env.kube.ResourceV1().ResourceClaims(s.name)
	s.must(claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.plugin.waitRecords(ctx, n.Node, "used")
	s.eventually(ctx, "the plugin to say why it keeps the record", func(context.Context) (bool, string, error) {
		log := n.LogTail(20)
		return strings.Contains(log, "cannot be allocated again yet") && strings.Contains(log, fmt.Sprintf("processes [%d]", os.Getpid())), log, nil
	})
	n.refused(ctx, s.allocate(ctx, "next", workload.OneGPU(n.name, device, false)), "allocated to claim "+s.name+"/used")
	n.sim(ctx, "client", "remove", "--gpu", n.index(ctx, device), "--pid", fmt.Sprint(os.Getpid()))
	s.plugin.waitRecords(ctx, n.Node)
}
