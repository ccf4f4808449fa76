// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// RepeatAfter is when the Event about a problem that lasts is written again: the API server deletes Events an hour after they were last
// written (kube-apiserver --event-ttl).
const RepeatAfter = 30 * time.Minute

// Events writes Events about the node, its claims and their pods. No method waits for the API server.
type Events struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
}

// NewEvents sends Events until ctx ends.
func NewEvents(ctx context.Context, client kubernetes.Interface, driver, node string) *Events {
	// Of the Events of one type about the node, the default lets 25 and then one in 5 minutes through, which is less than lasting problems
	// of some GPUs have.
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: 100, QPS: 1. / 60,
	}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return NewEventsWith(broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: driver, Host: node}), node)
}

// NewEventsWith writes Events with a recorder.
func NewEventsWith(recorder record.EventRecorder, node string) *Events {
	return &Events{
		recorder: recorder,
		// The kubelet uses its node's name as the UID in Events about it; `kubectl describe node` looks for that.
		node: &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
	}
}

// Warn writes a warning about the node.
func (e *Events) Warn(reason, message string) {
	e.recorder.Event(e.node, corev1.EventTypeWarning, reason, message)
}

// Note writes a normal Event about the node.
func (e *Events) Note(reason, message string) {
	e.recorder.Event(e.node, corev1.EventTypeNormal, reason, message)
}

// WarnClaim writes a warning about a claim.
func (e *Events) WarnClaim(claim records.Claim, reason, message string) {
	e.recorder.Event(reference(claim), corev1.EventTypeWarning, reason, message)
}

// NoteClaim writes a normal Event about a claim.
func (e *Events) NoteClaim(claim records.Claim, reason, message string) {
	e.recorder.Event(reference(claim), corev1.EventTypeNormal, reason, message)
}

// WarnObject writes a warning about any object.
func (e *Events) WarnObject(object *corev1.ObjectReference, reason, message string) {
	e.recorder.Event(object, corev1.EventTypeWarning, reason, message)
}

// NoteObject writes a normal Event about any object.
func (e *Events) NoteObject(object *corev1.ObjectReference, reason, message string) {
	e.recorder.Event(object, corev1.EventTypeNormal, reason, message)
}

// WarnOnce writes a warning about a cluster-wide object that the plugins of all nodes observe. The Event's name is derived from the
// object's UID, the reason and the message, so that only the first plugin writes it, and again for a new object or once the API server
// has deleted it. It waits for the API server.
func WarnOnce(
	ctx context.Context, client kubernetes.Interface, component string, object *corev1.ObjectReference, reason, message string,
) error {
	sum := sha256.Sum256([]byte(string(object.UID) + reason + message))
	now := metav1.Now()
	_, err := client.CoreV1().Events(object.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: object.Namespace, Name: fmt.Sprintf("%s.%x", object.Name, sum[:8])},
		InvolvedObject: *object, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		Source: corev1.EventSource{Component: component}, ReportingController: component, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// reference is the reference to a claim in Events.
func reference(claim records.Claim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
}
