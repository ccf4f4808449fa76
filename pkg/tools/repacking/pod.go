// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// watched is an attempt, and what tells the pods of its controller apart.
type watched struct {
	Attempt
	r          *Repacker
	controller types.UID
	// before are the pods of the controller, claims those of the pod by name.
	before map[types.UID]bool
	claims map[string]types.UID
	// refused is what the Eviction API said last.
	refused string
}

// watch begins an attempt. The pod is that of the move, or there is none.
func (r *Repacker) watch(ctx context.Context, m repack.Move) (*watched, error) {
	w := &watched{Attempt: Attempt{Move: m, Began: time.Now()}, r: r, before: map[types.UID]bool{}, claims: map[string]types.UID{}}
	pod, ok, err := w.pod(ctx)
	if err != nil || !ok {
		return w, err
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		w.controller = owner.UID
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		w.Grace = time.Duration(*s) * time.Second
	}
	for _, name := range claimNames(pod) {
		claim, ok, err := r.claim(ctx, m.Namespace, name)
		if err != nil {
			return nil, err
		}
		if ok {
			w.claims[name] = claim.UID
		}
	}
	err = w.siblings(ctx, func(p *corev1.Pod) { w.before[p.UID] = true })
	return w, err
}

// pod is the pod to evict; false if it is gone.
func (w *watched) pod(ctx context.Context) (pod *corev1.Pod, ok bool, err error) {
	pod, err = w.r.Client.CoreV1().Pods(w.Move.Namespace).Get(ctx, w.Move.Pod, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get %s: %w", w.name(), err)
	}
	return pod, pod.UID == w.Move.UID, nil // or another one of a StatefulSet
}

// claim is a claim; false if it is gone.
func (r *Repacker) claim(ctx context.Context, namespace, name string) (claim *resourceapi.ResourceClaim, ok bool, err error) {
	claim, err = r.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get claim %s/%s: %w", namespace, name, err)
	}
	return claim, true, nil
}

// claimNames are those of a pod as far as they are known: all of them, once it has a node.
func claimNames(p *corev1.Pod) (names []string) {
	for i := range p.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i]); err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if status := p.Status.ExtendedResourceClaimStatus; status != nil {
		names = append(names, status.ResourceClaimName)
	}
	return names
}

// pageSize bounds the pods of an answer.
const pageSize = 100

// siblings are the pods of the controller.
func (w *watched) siblings(ctx context.Context, do func(*corev1.Pod)) error {
	pages := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return w.r.Client.CoreV1().Pods(w.Move.Namespace).List(ctx, opts)
	})
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return nil
		}
		if owner := metav1.GetControllerOf(p); owner != nil && owner.UID == w.controller {
			do(p)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list pods of %s in namespace %s: %w", w.Move.Controller, w.Move.Namespace, err)
	}
	return nil
}

// look reads what there is of the attempt.
func (w *watched) look(ctx context.Context) (seen Seen, err error) {
	seen.Refused = w.refused
	pod, ok, err := w.pod(ctx)
	if err != nil {
		return seen, err
	}
	if ok {
		seen.Old = pod
	}
	for name, uid := range w.claims {
		claim, ok, err := w.r.claim(ctx, w.Move.Namespace, name)
		if err != nil {
			return seen, err
		}
		seen.Held = seen.Held || ok && claim.UID == uid && claim.Status.Allocation != nil
	}
	err = w.siblings(ctx, func(p *corev1.Pod) {
		if !w.before[p.UID] {
			seen.New = append(seen.New, Replacement{Pod: p})
		}
	})
	for i := range seen.New {
		at, ok, placeErr := w.r.place(ctx, seen.New[i].Pod)
		if ok {
			seen.New[i].At = &at
		}
		err = errors.Join(err, placeErr)
	}
	seen.Now = time.Now()
	return seen, err
}

// place is where a pod has its devices; false as long as it has not all.
func (r *Repacker) place(ctx context.Context, p *corev1.Pod) (at repack.Place, ok bool, err error) {
	if p.Spec.NodeName == "" {
		return at, false, nil
	}
	at.Node = p.Spec.NodeName
	for _, name := range claimNames(p) {
		claim, ok, err := r.claim(ctx, p.Namespace, name)
		if err != nil || !ok || claim.Status.Allocation == nil {
			return at, false, err
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver == r.Driver {
				at.Devices = append(at.Devices, result.Device)
			}
		}
	}
	return at, true, nil
}

// evict asks the Eviction API for the pod, after an Event of it: without one nobody could count evictions.
func (w *watched) evict(ctx context.Context, frees string) error {
	if w.refused == "" {
		if err := w.r.tellEvicted(ctx, &w.Move, frees); err != nil {
			return err
		}
	}
	err := w.r.evict(ctx, &w.Move)
	if apierrors.IsTooManyRequests(err) {
		w.refused = err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	w.refused, w.Evicted = "", time.Now()
	return nil
}

func (r *Repacker) evict(ctx context.Context, m *repack.Move) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Pod},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID}},
	}
	if r.DryRun {
		eviction.DeleteOptions.DryRun = []string{metav1.DryRunAll}
	}
	if err := r.Client.PolicyV1().Evictions(m.Namespace).Evict(ctx, eviction); err != nil {
		return fmt.Errorf("evict pod %s/%s: %w", m.Namespace, m.Pod, err)
	}
	return nil
}

// evictDry asks whether a pod could be evicted.
func (r *Repacker) evictDry(ctx context.Context, m *repack.Move) error {
	err := r.evict(ctx, m)
	if err != nil && !apierrors.IsTooManyRequests(err) {
		return err
	}
	if err != nil {
		r.Say("%s/%s: would wait: %v", m.Namespace, m.Pod, err)
		return nil
	}
	r.Say("%s/%s: would be evicted; the replacement would be at %s", m.Namespace, m.Pod, m.Where())
	return nil
}
