// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

const testDriver = v1alpha1.Group

func slicesOf(t testing.TB, model, node string) []resourceapi.ResourceSlice {
	t.Helper()
	inventory, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	return nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), testDriver, node).Items
}

// claimed is a claim, allocated devices of a node unless there are none.
func claimed(namespace, name, class, node string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: 1, AllocationMode: "ExactCount"}},
		}}},
	}
	if len(devices) == 0 {
		return c
	}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: testDriver, Pool: node, Device: d})
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-pod", UID: "1"}}
	return c
}

// machineOf is a Node that is ready.
func machineOf(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

func classOf(name, driver string) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", driver)}}},
	}}
}

func clusterOf(t testing.TB, model string, nodes []string, more ...runtime.Object) *fake.Clientset {
	t.Helper()
	objects := more
	for _, node := range nodes {
		objects = append(objects, machineOf(node))
		all := slicesOf(t, model, node)
		for i := range all {
			objects = append(objects, &all[i])
		}
	}
	return fake.NewClientset(append(objects, classOf("gpu.cleave.dev", testDriver), classOf("nic.example.com", "nic.example.com"))...)
}

// running is a source that has its first snapshot.
func running(t testing.TB, client *fake.Clientset, config Config) *Source {
	t.Helper()
	config.Client, config.Driver = client, testDriver
	if config.Settle == 0 {
		config.Settle = time.Millisecond
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, err := NewSource(ctx, config)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	until(t, s, func(s *Snapshot) bool { return s != nil })
	watched(t, client, len(s.watches.all()))
	return s
}

// watched waits until so many resources are watched: a fake client tells nobody of what is deleted between a list and its watch.
func watched(t testing.TB, client *fake.Clientset, want int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); ; <-tick.C {
		found := map[string]bool{}
		for _, a := range client.Actions() {
			if a.GetVerb() == "watch" {
				found[a.GetResource().Resource] = true
			}
		}
		if len(found) >= want {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d resources are watched, want %d", len(found), want)
		}
	}
}

// until waits for a snapshot with a property.
func until(t testing.TB, s *Source, is func(*Snapshot) bool) *Snapshot {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		next := s.Next()
		if snapshot := s.Snapshot(); is(snapshot) {
			return snapshot
		}
		select {
		case <-next:
		case <-limit:
			t.Fatalf("no such snapshot within a minute; the last is %+v", s.Snapshot())
		}
	}
}
