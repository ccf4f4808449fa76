// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const (
	productLabel = "nvidia.com/gpu.product"
	countLabel   = "nvidia.com/gpu.count"
)

// labelBed is a Labels that writes the Node of a fake API server, inside a synctest bubble.
type labelBed struct {
	*Labels
	t       *testing.T
	client  *fake.Clientset
	stop    func()
	applies atomic.Int32
	others  atomic.Int32

	mu sync.Mutex
	// fails is returned by every apply if it is set.
	fails error
}

const labelInterval = 5 * time.Minute

func newLabelBed(t *testing.T, labels map[string]string) *labelBed {
	b := &labelBed{t: t}
	b.client = labeledNode(labels, types.ApplyPatchType, func() error {
		b.applies.Add(1)
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.fails
	})
	w := NewWatcher(b.client, "gpu.cleave.dev", "node-1", "ns/plugin", func() {})
	b.Labels = NewLabels(w, func(others int) { b.others.Store(int32(others)) })
	followNode(t, w)
	b.stop = run(t, func(ctx context.Context) { b.Run(ctx, labelInterval) })
	return b
}

// labeledNode is an API server with a Node that has labels and the plugin's DaemonSet. A patch of the Node of a kind fails if before does.
func labeledNode(labels map[string]string, kind types.PatchType, before func() error) *fake.Clientset {
	node := nodeObject("")
	node.Labels = labels
	client := fake.NewClientset(node, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "plugin", UID: "1"}})
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.PatchAction).GetPatchType() != kind {
			return false, nil, nil
		}
		err := before()
		return err != nil, nil, err
	})
	return client
}

// followNode follows the Node and the DaemonSet of labeledNode until the test ends or stop.
func followNode(t *testing.T, w *Watcher) (stop func()) {
	return run(t, w.FollowDaemonSet, func(ctx context.Context) { w.Run(ctx, func(err error) { t.Error(err) }) })
}

// uninstall deletes the DaemonSet of labeledNode.
func uninstall(t *testing.T, client *fake.Clientset) {
	t.Helper()
	must(t)(nil, client.AppsV1().DaemonSets("ns").Delete(t.Context(), "plugin", metav1.DeleteOptions{}))
	synctest.Wait()
}

// labelsOf are the labels of the Node as "key=value", without a prefix of their keys.
func labelsOf(t *testing.T, client *fake.Clientset, prefix string) string {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		all = append(all, strings.TrimPrefix(key, prefix)+"="+node.Labels[key])
	}
	return strings.Join(all, " ")
}

// set has another client set labels; an empty value removes one.
func (b *labelBed) set(manager string, labels map[string]string) {
	b.t.Helper()
	patch := map[string]any{}
	for key, value := range labels {
		if patch[key] = value; value == "" {
			patch[key] = nil
		}
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": patch}})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.client.CoreV1().Nodes().Patch(b.t.Context(), "node-1", types.MergePatchType, data,
		metav1.PatchOptions{FieldManager: manager}); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

func (b *labelBed) wants(labels map[string]string) {
	b.Want(labels)
	synctest.Wait()
}

// check compares the labels of the Node, how often they were applied, and how many are of other clients.
func (b *labelBed) check(what, labels string, applies, others int32) {
	b.t.Helper()
	if diff := cmp.Diff(fmt.Sprintf("%s, applied %d times, %d of others", labels, applies, others), fmt.Sprintf("%s, applied %d times, %d of others",
		labelsOf(b.t, b.client, "nvidia.com/gpu."), b.applies.Load(), b.others.Load())); diff != "" {
		b.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestLabels_Apply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLabelBed(t, map[string]string{"zone": "a"})
		b.check("at first", "zone=a", 0, 0)
		b.wants(map[string]string{productLabel: "L4", countLabel: "2"})
		b.check("wanted", "count=2 product=L4 zone=a", 1, 0)
		b.wants(map[string]string{productLabel: "L4", countLabel: "2"})
		b.check("wanted again", "count=2 product=L4 zone=a", 1, 0)
		b.wants(map[string]string{productLabel: "L4"})
		b.check("one no longer", "product=L4 zone=a", 2, 0)
		<-time.After(3 * labelInterval)
		b.check("later", "product=L4 zone=a", 2, 0)
		b.wants(map[string]string{})
		b.check("none", "zone=a", 3, 0)
	})
}

// Labels of another tool stay as they are, whoever was first; when they are gone, they are ours.
func TestLabels_OtherClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLabelBed(t, nil)
		b.set("nfd-master", map[string]string{productLabel: "L4-SHARED"})
		b.wants(map[string]string{productLabel: "L4", countLabel: "2"})
		b.check("of another from the start", "count=2 product=L4-SHARED", 2, 1)
		<-time.After(3 * labelInterval)
		b.check("which is not tried again", "count=2 product=L4-SHARED", 2, 1)
		b.set("kubectl-label", map[string]string{countLabel: "9"})
		b.check("overwritten", "count=9 product=L4-SHARED", 4, 2)
		<-time.After(3 * labelInterval)
		b.check("and left alone", "count=9 product=L4-SHARED", 4, 2)
		b.set("nfd-master", map[string]string{productLabel: "", countLabel: ""})
		b.check("removed by the others", "count=2 product=L4", 5, 0)
	})
}

// A client that removes a label again and again makes the node change once an interval.
func TestLabels_RemovedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLabelBed(t, nil)
		b.wants(map[string]string{productLabel: "L4"})
		for range 100 {
			b.set("remover", map[string]string{productLabel: ""})
		}
		b.check("removed", "", 1, 0)
		<-time.After(labelInterval)
		synctest.Wait()
		b.check("an interval later", "product=L4", 2, 0)
	})
}

func TestLabels_Uninstalled(t *testing.T) {
	bubble(t, "ours are removed", func(t *testing.T) {
		b := newLabelBed(t, map[string]string{"zone": "a"})
		b.set("gfd", map[string]string{countLabel: "9"})
		b.wants(map[string]string{productLabel: "L4", countLabel: "2"})
		uninstall(t, b.client)
		b.check("gone", "count=9 zone=a", 3, 1)
		b.wants(map[string]string{productLabel: "L4"})
		b.check("and stay so", "count=9 zone=a", 3, 1)
	})
	bubble(t, "of an earlier plugin, at the first apply, and no GPU was found since", func(t *testing.T) {
		b := newLabelBed(t, map[string]string{"zone": "a"})
		earlier := &Labels{client: b.client, node: "node-1", have: b.have, gone: b.gone, report: b.report, others: map[string]string{}}
		earlier.write(t.Context(), map[string]string{productLabel: "L4"})
		uninstall(t, b.client)
		b.check("gone", "zone=a", 2, 0)
	})
	bubble(t, "a plugin that ends at the same moment", func(t *testing.T) {
		b := newLabelBed(t, nil)
		b.wants(map[string]string{productLabel: "L4"})
		b.stop()
		uninstall(t, b.client)
		b.check("ended before it saw that", "product=L4", 1, 0)
		b.Leave(t.Context())
		b.Leave(t.Context())
		b.check("left", "", 2, 0)
	})
	bubble(t, "a restart keeps them", func(t *testing.T) {
		b := newLabelBed(t, nil)
		b.wants(map[string]string{productLabel: "L4"})
		b.stop()
		b.check("ended", "product=L4", 1, 0)
	})
}

func TestLabels_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLabelBed(t, nil)
		b.fails = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node-1", fmt.Errorf("no right"))
		b.wants(map[string]string{productLabel: "L4"})
		b.check("refused", "", 1, 0)
		b.mu.Lock()
		b.fails = nil
		b.mu.Unlock()
		<-time.After(labelInterval)
		synctest.Wait()
		b.check("later", "product=L4", 2, 0)
	})
}
