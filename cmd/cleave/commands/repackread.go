// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// errUnread is returned for a cluster of which not all can be read that a restart depends on.
var errUnread = errors.New("pods are restarted only if all of it can be read")

// readRepack reads what the advice depends on. If it is to be followed, that is all of it: a replacement may not fit by what is not read.
func readRepack(ctx context.Context, client kubernetes.Interface, driver string, follow bool) (*repack.Cluster, error) {
	o, problems, err := repackObjects(ctx, client, driver)
	if err != nil {
		return nil, err
	}
	if follow && len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", strings.Join(problems, "; "), errUnread)
	}
	cluster := repack.NewCluster(o, problems...)
	err = errors.Join(
		eachSlice(ctx, client, fields.Set{resourceapi.ResourceSliceSelectorDriver: driver}, cluster.AddSlice),
		each(ctx, "Pods", client.CoreV1().Pods(metav1.NamespaceAll).List, cluster.AddPod),
	)
	if err != nil {
		return nil, err
	}
	return cluster, nil
}

// repackObjects lists the objects for the advice, except slices and pods. Objects that only some pods depend on are optional.
func repackObjects(ctx context.Context, client kubernetes.Interface, driver string) (o repack.Objects, problems []string, err error) {
	o.Driver = driver
	err = errors.Join(
		each(ctx, "Nodes", client.CoreV1().Nodes().List, func(n *corev1.Node) {
			n.ManagedFields, n.Status.Images = nil, nil
			o.Nodes = append(o.Nodes, n)
		}),
		each(ctx, "ResourceClaims", client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List, func(c *resourceapi.ResourceClaim) {
			if c.Status.Allocation != nil {
				c.ManagedFields, c.Status.Devices = nil, nil
				o.Claims = append(o.Claims, c)
			}
		}),
		each(ctx, "DeviceClasses", client.ResourceV1().DeviceClasses().List,
			func(c *resourceapi.DeviceClass) { o.Classes = append(o.Classes, c) }),
	)
	optional := func(what string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			problems = append(problems, fmt.Sprintf("%s are not considered: %v", what, err))
		}
	}
	optional("taints of DeviceTaintRules", each(ctx, "DeviceTaintRules", client.ResourceV1().DeviceTaintRules().List,
		func(r *resourceapi.DeviceTaintRule) { o.Rules = append(o.Rules, r) }))
	optional("PodDisruptionBudgets", each(ctx, "PodDisruptionBudgets", client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List,
		func(b *policyv1.PodDisruptionBudget) { o.Budgets = append(o.Budgets, b) }))
	optional("the nodes of PersistentVolumes", each(ctx, "PersistentVolumes", client.CoreV1().PersistentVolumes().List,
		func(v *corev1.PersistentVolume) { o.Volumes = append(o.Volumes, v) }))
	return o, problems, err
}
