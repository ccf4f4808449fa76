// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/resourcegen"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// randomStays is how long a pod with a random claim may wait for its devices, and how long it keeps them: the pods of the plan may wait
// for it as long.
const randomStays = 4 * time.Second

// randomPods lets pods pass whose claims are random, one at a time, until more ends. What they ask for may be what no node has, or
// what Cleave refuses: whatever it is, the pod can be deleted, and its devices return.
func (c *churn) randomPods(ctx, more context.Context) {
	classes := []string{classWhole, classSmall, classMedium, classSlice, classMPS, classPartSl, classPartMPS}
	for i := 0; more.Err() == nil; i++ {
		name := fmt.Sprintf("random-%05d", i)
		admitted, ran, err := c.randomPod(ctx, name, i, classes)
		if err != nil && ctx.Err() == nil {
			c.report.violation("random", "%s: %v", name, err)
		}
		c.report.randomClaim(admitted, ran)
	}
}

// randomPod is the life of one. It reports whether the API server admits the claim, and whether the pod ran.
func (c *churn) randomPod(ctx context.Context, name string, index int, classes []string) (admitted, ran bool, err error) {
	seed := int64(c.plan.random(streamClaims, index).Uint64() >> 1)
	templates := c.bed.kube.ResourceV1().ResourceClaimTemplates(namespace)
	template := workload.Template(name, resourcegen.ClaimSpec(seed, classes))
	creating, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	refused := false
	err = persist(creating, "create the template", func(ctx context.Context) error {
		_, err := templates.Create(ctx, template, metav1.CreateOptions{})
		refused = apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
		if refused || apierrors.IsAlreadyExists(err) { // an earlier answer was lost
			return nil
		}
		return err
	})
	if err != nil || refused {
		return false, false, err
	}
	r := c.plan.random(streamQueues, index)
	pod := Shape{Name: "random", Claims: []Ask{Ask(name)}}.queued(name, anyOf(r, kubeScheduler, cleaveScheduler), anyOf(r, queues()...))
	if err := c.bed.run(ctx, c.pods, pod, randomStays); err == nil {
		ran = true
		stays, cancel := context.WithTimeout(ctx, randomStays/2)
		c.pods.waitGone(stays, name)
		cancel()
	}
	if err := c.bed.endPod(ctx, c.pods, name, seed%8 == 0); err != nil {
		return true, ran, err
	}
	return true, ran, persist(ctx, "delete the template", func(ctx context.Context) error {
		return ignoreNotFound(templates.Delete(ctx, name, metav1.DeleteOptions{}))
	})
}
