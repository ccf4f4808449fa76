// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// heldBy is the finalizer of another controller, which holds claims for a while.
const heldBy = "soak.cleave.dev/held"

// objectFaults are what others do to objects of the API server that Cleave goes by.
type objectFaults struct{ *faults }

// recreateNode deletes the Node object and makes it anew.
func (f objectFaults) recreateNode(ctx context.Context, _ Fault) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	from := time.Now()
	return from, workload.RecreateNode(ctx, f.bed.kube, f.bed.cluster.NodeName())
}

// holdClaims puts a finalizer on all claims for a while. Pods that end meanwhile leave claims that are being deleted, which
// are to be unprepared all the same, and go once the finalizer is taken away.
func (f objectFaults) holdClaims(ctx context.Context, fault Fault) (time.Time, error) {
	hold, err := f.editClaims(ctx, func(c *resourceapi.ResourceClaim) bool {
		if c.DeletionTimestamp != nil || slices.Contains(c.Finalizers, heldBy) {
			return false
		}
		c.Finalizers = append(c.Finalizers, heldBy)
		return true
	})
	if err == nil && hold == 0 {
		err = errors.New("there is no claim to hold")
	}
	if err == nil {
		err = f.last(ctx, fault)
	}
	from := time.Now()
	_, letGo := f.editClaims(context.WithoutCancel(ctx), func(c *resourceapi.ResourceClaim) bool {
		n := len(c.Finalizers)
		c.Finalizers = slices.DeleteFunc(c.Finalizers, func(s string) bool { return s == heldBy })
		return len(c.Finalizers) < n
	})
	return from, errors.Join(err, letGo)
}

// turnGatesOff has the API server and the scheduler start without counters and shares, as on releases where they are off, and then with
// them. The plugin asks what is counted each time, since the API server was away. Meanwhile GPUs are offered whole, but none of which
// anything else is allocated: nothing would keep a second claim from it. Before the plugin knows, the scheduler may have allocated
// shares as if they were GPUs. Such a claim is refused, and its pod is deleted by whoever looks after it.
func (f objectFaults) turnGatesOff(ctx context.Context, fault Fault) (from time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*healTimeout)
	defer cancel()
	without := gates()
	without["DRAPartitionableDevices"], without["DRAConsumableCapacity"] = false, false
	off := cluster.WithFeatureGates(f.bed.cluster, without)
	err = f.restartWith(ctx, off)
	if err == nil {
		err = f.waitUncounted(ctx)
	}
	if err == nil {
		err = f.last(ctx, fault)
	}
	from = time.Now()
	ctx = context.WithoutCancel(ctx)
	return from, errors.Join(err, f.restartWith(ctx, f.bed.cluster), f.deleteRefused(ctx))
}

// deleteRefused deletes the pods with claims that were allocated shares without an ID.
func (f objectFaults) deleteRefused(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	return workload.Until(ctx, "pods whose shares have no ID to be deleted", func(ctx context.Context) (bool, string, error) {
		claims, err := f.bed.kube.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		pods, err := f.bed.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		for _, pod := range refusedPods(claims.Items, pods.Items) {
			f.report.podRefused(pod)
			if err := ignoreNotFound(f.bed.kube.CoreV1().Pods(namespace).Delete(ctx, pod, metav1.DeleteOptions{})); err != nil {
				return false, err.Error(), nil //nolint:nilerr // the API server may be away
			}
		}
		return true, "", nil
	})
}

// refusedPods are the names of the pods that claims are reserved for, themselves or by their PodGroups, which have shares without an ID.
func refusedPods(claims []resourceapi.ResourceClaim, pods []corev1.Pod) []string {
	consumers := map[string]bool{}
	for _, c := range claims {
		if c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Results, lacksShareID) {
			continue
		}
		for _, r := range c.Status.ReservedFor {
			consumers[r.Resource+"/"+r.Name] = true
		}
	}
	var names []string
	for _, p := range pods {
		group := p.Spec.SchedulingGroup
		if consumers["pods/"+p.Name] || group != nil && group.PodGroupName != nil && consumers["podgroups/"+*group.PodGroupName] {
			names = append(names, p.Name)
		}
	}
	return names
}

func lacksShareID(r resourceapi.DeviceRequestAllocationResult) bool {
	shared := strings.HasSuffix(r.Device, "-mps") || strings.HasSuffix(r.Device, "-timeslice")
	return shared && r.ShareID == nil && (r.AdminAccess == nil || !*r.AdminAccess)
}

// restartWith restarts what feature gates matter to.
func (f objectFaults) restartWith(ctx context.Context, c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	for _, component := range []cluster.Component{cluster.APIServer, cluster.Scheduler} {
		// SIGTERM has the API server wait a minute for its watchers.
		if err := c.Component(component).Restart(ctx, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// waitUncounted waits until nothing is published but whole GPUs and what is allocated.
func (f objectFaults) waitUncounted(ctx context.Context) error {
	return workload.Until(ctx, "GPUs to be offered whole alone", func(ctx context.Context) (bool, string, error) {
		pool, err := f.bed.pool(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		var others []string
		for _, s := range pool {
			for _, d := range s.Spec.Devices {
				if *d.Attributes["type"].StringValue != "gpu" && len(d.Taints) == 0 {
					others = append(others, d.Name)
				}
			}
		}
		return len(pool) > 0 && len(others) == 0, fmt.Sprintf("%d others are", len(others)), nil
	})
}

// editClaims edits the claims of the pods, by an update of the whole object as controllers do, and counts those that it changed.
func (f objectFaults) editClaims(ctx context.Context, edit func(*resourceapi.ResourceClaim) bool) (edited int, err error) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	claims := f.bed.kube.ResourceV1().ResourceClaims(namespace)
	err = workload.Until(ctx, "the finalizers of claims to be changed", func(ctx context.Context) (bool, string, error) {
		list, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		var again []error
		for i := range list.Items {
			if !edit(&list.Items[i]) {
				continue
			}
			_, err := claims.Update(ctx, &list.Items[i], metav1.UpdateOptions{})
			switch {
			case err == nil:
				edited++
			case !apierrors.IsNotFound(err):
				again = append(again, err)
			}
		}
		return len(again) == 0, fmt.Sprint(errors.Join(again...)), nil
	})
	return edited, err
}
