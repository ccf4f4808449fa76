// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// labelsManager is the field manager of the labels, under every driver name: a plugin with another name takes them over.
const labelsManager = "cleave-node-labels"

// labelsTimeout bounds a write of the labels, also that of a plugin that is being uninstalled.
const labelsTimeout = 5 * time.Second

// Labels writes the labels by which a Node describes its GPUs. They are applied (server-side apply), never forced: the API server
// knows who set each, refuses to change what another client has set to another value, and removes only what was applied. A label
// that another client has set stays as it is until it is gone.
type Labels struct {
	client kubernetes.Interface
	node   string
	// have returns the labels of the node; false while they are unknown. gone reports whether the plugin was uninstalled.
	have func() (map[string]string, bool)
	gone func() bool
	// report is told how many labels other clients have set to another value.
	report func(others int)
	wake   chan struct{}

	mu   sync.Mutex
	want map[string]string // nil while unknown

	// The rest is for the goroutine of Run. applied are the labels of the last apply; nil for none yet. others are those of other
	// clients, with what the API server says of them.
	applied, others map[string]string
	// logged is the last logged error.
	logged string
}

// NewLabels writes the labels of the watched node. report is told how many other clients have set.
func NewLabels(w *Watcher, report func(others int)) *Labels {
	return &Labels{client: w.client, node: w.node, wake: w.labels, have: w.nodeLabels, gone: w.DaemonSetGone, report: report,
		others: map[string]string{}}
}

// nodeLabels are the labels that describe the GPUs; false before the Node was read.
func (w *Watcher) nodeLabels() (map[string]string, bool) {
	nodes := w.object.all()
	if len(nodes) == 0 {
		return nil, false
	}
	return nodes[0].Labels, true
}

// Want sets the wanted labels; none removes those that were applied. It does not block.
func (l *Labels) Want(labels map[string]string) {
	l.mu.Lock()
	changed := l.want == nil || !maps.Equal(l.want, labels)
	l.want = labels
	l.mu.Unlock()
	if changed {
		signals(l.wake)()
	}
}

// Run keeps the labels of the node until ctx ends: it applies them when they are to change, and otherwise looks at most every interval
// whether they are still there, so that two clients that write the same label cannot make the node change all the time. It removes them
// once the plugin's DaemonSet is gone, at once: Helm deletes the plugin's rights next.
func (l *Labels) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	checked := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			checked = false
		case <-l.wake:
		}
		want, have, known := l.state()
		if !known {
			continue
		}
		next := l.next(want, have)
		if l.applied != nil && maps.Equal(next, l.applied) && (checked || !lacks(have, next)) {
			continue
		}
		checked = true
		l.write(ctx, next)
	}
}

// Leave removes what Run has applied, when the plugin ends because it was uninstalled.
func (l *Labels) Leave(ctx context.Context) {
	if l != nil && len(l.applied) > 0 {
		l.write(ctx, nil)
	}
}

// state returns the wanted and the present labels; false while either is unknown. Once the plugin was uninstalled, none is wanted.
func (l *Labels) state() (want, have map[string]string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have, known = l.have()
	if l.gone() {
		return map[string]string{}, have, known
	}
	return l.want, have, known && l.want != nil
}

// next are the labels to apply: the wanted ones, except those of other clients, as long as these exist.
func (l *Labels) next(want, have map[string]string) map[string]string {
	maps.DeleteFunc(l.others, func(key, _ string) bool { _, has := have[key]; return !has })
	next := maps.Clone(want)
	maps.DeleteFunc(next, func(key, _ string) bool { return l.others[key] != "" })
	return next
}

// lacks reports whether a label is missing or has another value.
func lacks(have, want map[string]string) bool {
	for key, value := range want {
		if got, has := have[key]; !has || got != value {
			return true
		}
	}
	return false
}

// apply applies labels, and without those of other clients if the API server refuses them.
func (l *Labels) apply(ctx context.Context, labels map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, labelsTimeout)
	defer cancel()
	for {
		node := applycorev1.Node(l.node).WithLabels(labels)
		_, err := l.client.CoreV1().Nodes().Apply(ctx, node, metav1.ApplyOptions{FieldManager: labelsManager})
		conflicts := conflictsOf(err, labels)
		if err == nil {
			l.applied = labels
		}
		if len(conflicts) == 0 {
			l.report(len(l.others))
			return err
		}
		maps.Copy(l.others, conflicts)
		labels = maps.Clone(labels)
		maps.DeleteFunc(labels, func(key, _ string) bool { return conflicts[key] != "" })
		l.logConflicts(ctx, conflicts)
	}
}

// conflictsOf are the labels that the API server does not let this client change, with the reason; none for another error.
func conflictsOf(err error, labels map[string]string) map[string]string {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	conflicts := map[string]string{}
	for _, cause := range status.Status().Details.Causes {
		if key, isLabel := strings.CutPrefix(cause.Field, ".metadata.labels."); isLabel && cause.Type == metav1.CauseTypeFieldManagerConflict {
			if _, wanted := labels[key]; wanted {
				conflicts[key] = cause.Message
			}
		}
	}
	return conflicts
}

// logConflicts names labels that stay as they are: once, as they are not tried again while they exist.
func (l *Labels) logConflicts(ctx context.Context, conflicts map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(conflicts)) {
		klog.FromContext(ctx).Info("A label of this node is another client's, and stays as it is", "label", key, "reason", conflicts[key])
	}
}

// write applies labels, and logs an error that is new. The plugin may be ending while it removes those of an uninstalled one.
func (l *Labels) write(ctx context.Context, labels map[string]string) {
	message, logger := "The labels of this node cannot be written; retrying", klog.FromContext(ctx)
	if l.gone() {
		message = "The labels that describe this node's GPUs stay: the plugin was uninstalled, and its rights with it"
		ctx = context.WithoutCancel(ctx)
	}
	text := ""
	if err := l.apply(ctx, labels); err != nil {
		if text = err.Error(); text != l.logged {
			logger.Error(err, message, "node", l.node)
		}
	}
	l.logged = text
}
