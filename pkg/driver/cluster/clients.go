// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// clientsManager is the field manager of the labels of clients.
const clientsManager = "cleave-pause-clients"

// clientsRetry is the time between attempts to write a label.
const clientsRetry = 5 * time.Second

// Clients stops DaemonSets of GPU clients, such as DCGM, by labels of the Node: those to be paused are set from
// v1alpha1.ClientsDeployed to v1alpha1.ClientsPaused, and back once they need not be any more.
//
// The label itself is the record of a pause: one that has the second value was set by Cleave, was "true" before, and is set back by
// whichever plugin finds it. Every write is conditional on the value that is replaced, so that a label that another client has set
// stays as that has set it.
type Clients struct {
	client kubernetes.Interface
	node   string
	// allowed are the labels that may be changed, have returns their values, and gone whether the plugin was uninstalled.
	allowed []string
	have    func() map[string]string
	gone    func() bool
	// failed is called with a new reason why a label cannot be written. One that does not last is only logged, such as that another
	// client was faster.
	failed func(err error)
	wake   chan struct{}

	mu    sync.Mutex
	known bool // whether want is set
	want  []string

	// The rest is for the goroutine of Run. wrote are the values that were written last: a label that another client has changed during
	// a pause is not set again, and one is not set back twice before that is seen. logged and told are the last errors. mine are labels
	// that were to be paused and were not set back, by anybody: the answer to a write can get lost. seen are those of them that the Node
	// had paused.
	wrote, logged, told map[string]string
	mine, seen          map[string]bool
}

// NewClients changes some labels of the watched node, which is called before the watcher runs.
func NewClients(w *Watcher, allowed []string, failed func(err error)) *Clients {
	w.clientLabels = allowed
	return &Clients{client: w.client, node: w.node, allowed: allowed, wake: w.clients, gone: w.DaemonSetGone, failed: failed,
		have:  func() map[string]string { return w.State().Node.Clients },
		wrote: map[string]string{}, logged: map[string]string{}, told: map[string]string{},
		mine: map[string]bool{}, seen: map[string]bool{}}
}

// clientsOf returns the labels of a Node that are among some.
func clientsOf(object any, allowed []string) map[string]string {
	node, ok := object.(*corev1.Node)
	var found map[string]string
	for _, key := range allowed {
		value, has := "", false
		if ok {
			value, has = node.Labels[key]
		}
		if has && found == nil {
			found = map[string]string{}
		}
		if has {
			found[key] = value
		}
	}
	return found
}

// Pause has some labels paused, and all others set back. Before the first call nothing is changed. It does not block. Nil does nothing.
func (c *Clients) Pause(labels []string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	changed := !c.known || !slices.Equal(c.want, labels)
	c.known, c.want = true, slices.Clone(labels)
	c.mu.Unlock()
	if changed {
		signals(c.wake)()
	}
}

// Run keeps the labels until ctx ends. It sets all back once the plugin's DaemonSet is gone, at once: Helm deletes its rights next.
func (c *Clients) Run(ctx context.Context) {
	tick := time.NewTicker(clientsRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.keep(ctx, true)
		case <-c.wake:
			c.keep(ctx, false)
		}
	}
}

// Leave sets the labels back that this plugin has paused, when it ends: a terminating pod has little time.
func (c *Clients) Leave(ctx context.Context) {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), labelsTimeout)
	defer cancel()
	for _, label := range c.allowed {
		if c.mine[label] {
			c.set(ctx, label, v1alpha1.ClientsPaused, v1alpha1.ClientsDeployed)
		}
	}
}

// keep writes the labels that are to be changed; again is set to repeat writes whose effect is not seen.
func (c *Clients) keep(ctx context.Context, again bool) {
	c.mu.Lock()
	known, want := c.known, c.want
	c.mu.Unlock()
	if c.gone() {
		known, want = true, nil
	}
	if !known {
		return
	}
	have := c.have()
	for _, label := range c.allowed {
		value := have[label]
		if c.seen[label] && value != v1alpha1.ClientsPaused {
			c.mine[label] = false
		}
		c.seen[label] = c.mine[label] && value == v1alpha1.ClientsPaused
		switch paused := slices.Contains(want, label); {
		case paused && value == v1alpha1.ClientsDeployed && c.wrote[label] != v1alpha1.ClientsPaused:
			c.set(ctx, label, v1alpha1.ClientsDeployed, v1alpha1.ClientsPaused)
		case paused:
		case value != v1alpha1.ClientsPaused:
			delete(c.wrote, label)
		case again || c.wrote[label] != v1alpha1.ClientsDeployed:
			c.set(ctx, label, v1alpha1.ClientsPaused, v1alpha1.ClientsDeployed)
		}
	}
}

// set changes a label that has a value. It logs an error that is new, and reports one that lasts.
func (c *Clients) set(ctx context.Context, label, from, to string) {
	if to == v1alpha1.ClientsPaused {
		c.mine[label] = true
	}
	err := c.patch(ctx, label, from, to)
	if err == nil {
		c.wrote[label], c.mine[label] = to, to == v1alpha1.ClientsPaused
		delete(c.logged, label)
		delete(c.told, label)
		klog.FromContext(ctx).Info("Changed a label of clients of the GPUs", "node", c.node, "label", label, "from", from, "to", to)
		return
	}
	switch text := err.Error(); text {
	case c.told[label]:
	case c.logged[label]:
		c.told[label] = text
		c.failed(err)
	default:
		c.logged[label] = text
		klog.FromContext(ctx).Error(err, "A label of clients of the GPUs cannot be changed; retrying", "node", c.node)
	}
}

// patch replaces a value of a label; the API server refuses that for any other value.
func (c *Clients) patch(ctx context.Context, label, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, labelsTimeout)
	defer cancel()
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value string `json:"value"`
	}
	path := "/metadata/labels/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(label)
	data, err := json.Marshal([]operation{{"test", path, from}, {"replace", path, to}})
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, c.node, types.JSONPatchType, data, metav1.PatchOptions{FieldManager: clientsManager})
	if err != nil {
		return fmt.Errorf("set the label %s of Node %s from %q to %q: %w", label, c.node, from, to, err)
	}
	return nil
}
