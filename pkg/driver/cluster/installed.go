// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// ClassesAnnotation lists, on the plugin's DaemonSet, the names of the DeviceClasses that were installed with it, separated by
// commas. It is not on the pods, so that a change of classes does not restart plugins.
const ClassesAnnotation = "gpu.cleave.dev/device-classes"

// installation is the needed part of the plugin's DaemonSet.
type installation struct {
	UID     types.UID
	Classes []string
}

// FollowDaemonSet follows the plugin's DaemonSet until ctx ends. It is not part of Run, because it must outlive it: the check for
// an uninstallation follows Run.
func (w *Watcher) FollowDaemonSet(ctx context.Context) {
	if w.daemonSet == "" {
		return
	}
	namespace, name, _ := strings.Cut(w.daemonSet, "/")
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	follow(ctx, w.installed, w.client, w.client.AppsV1().DaemonSets(namespace), &appsv1.DaemonSet{}, selector, func(err error) {
		klog.FromContext(ctx).V(4).Info("Cannot watch the plugin's DaemonSet", "daemonSet", w.daemonSet, "reason", err.Error())
	})
}

// followClasses follows the DeviceClasses until ctx ends. They rarely change, and only their names are kept.
func (w *Watcher) followClasses(ctx context.Context) {
	follow(ctx, w.classes, w.client, w.client.ResourceV1().DeviceClasses(), &resourceapi.DeviceClass{}, "", func(err error) {
		klog.FromContext(ctx).V(4).Info("Cannot watch DeviceClasses", "reason", err.Error())
	})
}

// isInstalled returns the needed part of the DaemonSet while it exists and is not being deleted.
func (w *Watcher) isInstalled(object any) (installation, bool) {
	set, ok := object.(*appsv1.DaemonSet)
	if !ok || set.Namespace+"/"+set.Name != w.daemonSet || set.DeletionTimestamp != nil {
		return installation{}, false
	}
	w.seenInstalled.Store(true)
	kept := installation{UID: set.UID}
	if names := set.Annotations[ClassesAnnotation]; names != "" {
		kept.Classes = strings.Split(names, ",")
	}
	return kept, true
}

// DaemonSetGone reports whether the plugin's DaemonSet existed and was then deleted. One that could not be read counts as
// existing.
func (w *Watcher) DaemonSetGone() bool {
	return w.seenInstalled.Load() && len(w.installed.all()) == 0
}

// AwaitDaemonSetGone waits until DaemonSetGone or the end of ctx, and reports which. It does not wait for a DaemonSet that never
// existed. It consumes the values of ClassesChanged.
func (w *Watcher) AwaitDaemonSetGone(ctx context.Context) bool {
	for w.seenInstalled.Load() {
		if w.DaemonSetGone() {
			return true
		}
		select {
		case <-w.classesChanged:
		case <-ctx.Done():
			return w.DaemonSetGone()
		}
	}
	return false
}

// MissingClasses are the DeviceClasses that were installed with the plugin's DaemonSet and do not exist, sorted; none while the
// DaemonSet is gone or unknown, as an uninstallation removes them. The reference is to the DaemonSet.
func (w *Watcher) MissingClasses() (daemonSet *corev1.ObjectReference, missing []string) {
	select {
	case <-w.classes.known:
	default:
		return nil, nil
	}
	sets := w.installed.all()
	if len(sets) == 0 {
		return nil, nil
	}
	for _, name := range sets[0].Classes {
		if !w.classes.has(name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	namespace, name, _ := strings.Cut(w.daemonSet, "/")
	return &corev1.ObjectReference{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet", Namespace: namespace, Name: name,
		UID: sets[0].UID}, missing
}

// ClassesChanged has a value after MissingClasses may have changed.
func (w *Watcher) ClassesChanged() <-chan struct{} { return w.classesChanged }
