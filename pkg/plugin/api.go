// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/records"
)

// apiClaims reads claims for the engine's Reconcile.
type apiClaims struct {
	client kubernetes.Interface
}

// Claim returns nil for a claim that does not exist.
func (a apiClaims) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := a.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // absence is an ordinary answer
	}
	return claim, err
}

// ClaimByUID lists claims in pages of 500.
func (a apiClaims) ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error) {
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := a.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list claims: %w", err)
		}
		for i := range page.Items {
			if page.Items[i].UID == uid {
				return &page.Items[i], nil
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil, nil //nolint:nilnil // absence is an ordinary answer
		}
	}
}

// nodeEvents writes Events about the node.
type nodeEvents struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
}

// newNodeEvents sends Events until ctx ends.
func newNodeEvents(ctx context.Context, client kubernetes.Interface, driver, node string) *nodeEvents {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return &nodeEvents{
		recorder: broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: driver, Host: node}),
		// The kubelet gives its node's name as the UID in Events about it; `kubectl describe node` looks for that.
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
	}
}

// warnClaim writes a warning about a claim.
func (n *nodeEvents) warnClaim(claim records.Claim, reason, message string) {
	n.recorder.Event(reference(claim), corev1.EventTypeWarning, reason, message)
}

// warnObject writes a warning about an object.
func (n *nodeEvents) warnObject(object *corev1.ObjectReference, reason, message string) {
	n.recorder.Event(object, corev1.EventTypeWarning, reason, message)
}

// noteClaim writes of a claim with which something is as it should be again.
func (n *nodeEvents) noteClaim(claim records.Claim, reason, message string) {
	n.recorder.Event(reference(claim), corev1.EventTypeNormal, reason, message)
}

// reference is a claim as Events name it.
func reference(claim records.Claim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
}

// warn writes of something that needs a look.
func (n *nodeEvents) warn(reason, message string) {
	n.recorder.Event(n.node, corev1.EventTypeWarning, reason, message)
}

// note writes of something that is as it should be.
func (n *nodeEvents) note(reason, message string) {
	n.recorder.Event(n.node, corev1.EventTypeNormal, reason, message)
}
