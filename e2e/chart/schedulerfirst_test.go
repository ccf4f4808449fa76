// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// firstLease is the lease of the cluster's own kube-scheduler, by its defaults.
const firstLease = "kube-scheduler"

// inPlaceOfFirst lets cleave-scheduler take over from the cluster's own scheduler: it waits for that one's lease,
// so that the two never schedule at once. The local cluster's runs without leader election, so that the test has the lease
// for it.
func inPlaceOfFirst(t *testing.T, ctx context.Context) {
	leases := env.kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	first, hour, now := "first", int32(3600), metav1.NewMicroTime(time.Now())
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: firstLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &first, LeaseDurationSeconds: &hour, AcquireTime: &now, RenewTime: &now},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, leases.Delete(context.Background(), firstLease, metav1.DeleteOptions{})) })
	// One replica: two would have to be on two nodes.
	helmOn(t, schedulerValues("default-scheduler"), "upgrade", "cleave", chartDir, "--set", "scheduler.replicas=1",
		"--wait", "--timeout", helmTimeout)
	rolledOut := func() {
		t.Helper()
		_, err := env.client.Kubectl(ctx, "", "--namespace", namespace, "rollout", "status", "deployment/"+schedulerName,
			"--timeout="+helmTimeout)
		must(t, err)
	}
	rolledOut()

	scheduler := env.cluster.Component(cluster.Scheduler)
	must(t, scheduler.Stop(ctx, syscall.SIGTERM))
	t.Cleanup(func() { must(t, scheduler.Start(context.Background())) })
	// One pod without GPUs, one that names the second scheduler, as before, and one as its example has it.
	second := workload.Pod("second", "")
	second.Spec.SchedulerName = schedulerName
	create(t, ctx, workload.Pod("plain", ""), second)
	kubectl(t, ctx, "apply", "-f", filepath.Join(examplesDir, "one-gpu.yaml"))
	for _, p := range schedulerPods(t, ctx) {
		log, err := env.cluster.PodLogs(ctx, namespace, p.Name, "scheduler")
		must(t, err)
		if strings.Contains(log, "successfully acquired lease") {
			t.Errorf("%s leads while another has the lease", p.Name)
		}
	}
	free := ""
	lease.Spec.HolderIdentity = &free
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	must(t, err)
	leader(t, ctx, metav1.NamespaceSystem, firstLease)
	for _, name := range []string{"plain", "second", "one-gpu"} {
		runs(t, ctx, name)
	}
	// It schedules its own pod.
	kubectl(t, ctx, "--namespace", namespace, "rollout", "restart", "deployment/"+schedulerName)
	rolledOut()
	leads := leader(t, ctx, metav1.NamespaceSystem, firstLease)
	pods := example(t, ctx, "shared-claim", nil)
	if name, instance := scheduledBy(t, ctx, pods[len(pods)-1]); name != "default-scheduler" || !strings.HasSuffix(instance, leads.Name) {
		t.Errorf("the pod was scheduled by %s, %s, want default-scheduler and %s", name, instance, leads.Name)
	}
	emptyDemo(t, ctx)
	schedulerLogs(t, ctx)
}
