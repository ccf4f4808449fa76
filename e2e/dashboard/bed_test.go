// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/browser"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/dashboard"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

const (
	slicesPath  = "/apis/resource.k8s.io/v1/resourceslices"
	claimsPath  = "/apis/resource.k8s.io/v1/resourceclaims"
	classesPath = "/apis/resource.k8s.io/v1/deviceclasses"
	rulesPath   = "/apis/resource.k8s.io/v1/devicetaintrules"
	nodesPath   = "/api/v1/nodes"
	podsPath    = "/api/v1/pods"

	templatesPath = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
	quotasPath    = "/api/v1/resourcequotas"
)

// timeout is for a browser on a busy machine.
const timeout = 3 * time.Minute

// bed is a simulated cluster with a dashboard.
type bed struct {
	api *apiServer
	url string
	// gpus are the devices of each model's whole GPUs.
	gpus map[string][]string
	// connections to the dashboard.
	connections *connections
	config      dashboard.Config
}

// connections of a listener, which can be cut.
type connections struct {
	net.Listener
	mu   sync.Mutex
	off  bool
	open []net.Conn
}

// Accept closes new connections while all are cut.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn)
	if c.off {
		_ = conn.Close() // on purpose
	}
	return conn, nil
}

// cut ends all connections to the dashboard, and refuses new ones until it is called with false.
func (b *bed) cut(off bool) {
	b.connections.mu.Lock()
	defer b.connections.mu.Unlock()
	b.connections.off = off
	for _, conn := range b.connections.open {
		_ = conn.Close() // on purpose
	}
	b.connections.open = nil
}

func newBed(t testing.TB) *bed {
	t.Helper()
	if os.Getenv("CLEAVE_E2E") == "" {
		t.Skip("CLEAVE_E2E is not set: it needs Chromium")
	}
	return &bed{api: newAPIServer(), gpus: map[string][]string{}}
}

// must ends a test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addNodes adds nodes of a model, which differ by their names only.
func (b *bed) addNodes(t testing.TB, model string, names ...string) {
	t.Helper()
	inventory, err := models.Load(model)
	must(t, err)
	const placeholder = "node-placeholder"
	objects := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), v1alpha1.Group, placeholder)
	for i := range inventory.GPUs {
		b.gpus[model] = append(b.gpus[model], inventory.GPUs[i].PCI.DeviceName())
	}
	for i := range objects.Items {
		data, err := json.Marshal(objects.Items[i])
		must(t, err)
		for _, name := range names {
			b.api.put(slicesPath, fmt.Sprintf("%s-%03d", name, i), func(int) []byte {
				return bytes.ReplaceAll(data, []byte(placeholder), []byte(name))
			})
		}
	}
	for _, name := range names {
		b.setNode(name, false)
	}
}

func (b *bed) setNode(name string, cordoned bool) {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	b.api.put(nodesPath, name, constant(n, func(n *corev1.Node, v string) { n.ResourceVersion = v }))
}

// addClass adds the class of whole GPUs.
func (b *bed) addClass(name string) {
	c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.driver == %[1]q && device.attributes[%[1]q].type == %[2]q", v1alpha1.Group, gpu.TypeGPU)}}}
	b.api.put(classesPath, name, constant(c, func(c *resourceapi.DeviceClass, v string) { c.ResourceVersion = v }))
}

// claim sets a claim, "namespace/name": allocated devices of a node, or pending without any.
func (b *bed) claim(key, class, node string, devices ...string) {
	b.put(newClaim(key, class, node, devices...))
}

// wanted sets a claim that waits for so many devices.
func (b *bed) wanted(key, class string, count int64) {
	c := newClaim(key, class, "")
	c.Spec.Devices.Requests[0].Exactly.Count = count
	b.put(c)
}

func newClaim(key, class, node string, devices ...string) *resourceapi.ResourceClaim {
	namespace, name, _ := strings.Cut(key, "/")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + strings.ReplaceAll(key, "/", "-")),
		CreationTimestamp: metav1.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(max(1, len(devices)))}}}
	if len(devices) > 0 {
		c.Status.Allocation = &resourceapi.AllocationResult{}
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name + "-0", UID: "1"}}
	}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v1alpha1.Group, Pool: node, Device: d})
	}
	return c
}

func (b *bed) put(c *resourceapi.ResourceClaim) {
	b.api.put(claimsPath, c.Namespace+"/"+c.Name, constant(*c, func(c *resourceapi.ResourceClaim, v string) { c.ResourceVersion = v }))
}

// share sets a claim for a part of a shared device: one client, and of MPS a part of the cores and the memory.
func (b *bed) share(key, class, node, device string, amounts ...string) {
	c := newClaim(key, class, node, device)
	has := map[resourceapi.QualifiedName]resource.Quantity{gpu.CapacityShares: resource.MustParse("1")}
	for i, name := range []resourceapi.QualifiedName{gpu.CapacityCores, gpu.CapacityMemory}[:len(amounts)] {
		has[name] = resource.MustParse(amounts[i])
	}
	c.Status.Allocation.Devices.Results[0].ConsumedCapacity = has
	b.put(c)
}

// pod sets a pod that waits for a claim of its namespace.
func (b *bed) pod(key, claim string) {
	b.podWith(key, corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim})
}

// refused sets a pod whose claim, of one whole GPU, a quota refuses to be created from its template.
func (b *bed) refused(key string) {
	namespace, _, _ := strings.Cut(key, "/")
	t := resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "whole"}}
	t.Spec.Spec = newClaim(key, "gpu.cleave.dev", "").Spec
	b.api.put(templatesPath, namespace+"/whole", constant(t, func(t *resourceapi.ResourceClaimTemplate, v string) { t.ResourceVersion = v }))
	q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpus"}}
	q.Spec.Hard = corev1.ResourceList{"gpu.cleave.dev.deviceclass.resource.k8s.io/devices": resource.MustParse("0")}
	b.api.put(quotasPath, namespace+"/gpus", constant(q, func(q *corev1.ResourceQuota, v string) { q.ResourceVersion = v }))
	b.podWith(key, corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &t.Name})
}

func (b *bed) podWith(key string, claim corev1.PodResourceClaim) {
	namespace, name, _ := strings.Cut(key, "/")
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("pod-" + name),
		CreationTimestamp: metav1.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)}}
	p.Spec.SchedulerName = corev1.DefaultSchedulerName
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	b.api.put(podsPath, key, constant(p, func(p *corev1.Pod, v string) { p.ResourceVersion = v }))
}

// serve starts API server and dashboard, and waits until it has read the cluster.
func (b *bed) serve(t testing.TB) {
	t.Helper()
	api := httptest.NewServer(b.api)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	source, err := fleet.NewSource(ctx, fleet.Config{Client: client, Driver: v1alpha1.Group, Pods: true})
	must(t, err)
	server, err := dashboard.New(source, b.config)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b.url = "http://" + listener.Addr().String() + "/"
	b.connections = &connections{Listener: listener}
	done := make(chan struct{}, 2)
	go func() { source.Run(ctx); done <- struct{}{} }()
	go func() {
		if err := server.Serve(ctx, b.connections); err != nil {
			t.Error(err)
		}
		done <- struct{}{}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
		api.CloseClientConnections()
		api.Close()
	})
	deadline := time.After(5 * timeout)
	for source.Snapshot() == nil {
		select {
		case <-source.Next():
		case <-deadline:
			t.Fatal("the dashboard has not read the cluster")
		}
	}
}

// open opens a page of the dashboard, at its root unless a path is given, and waits until it is live.
func (b *bed) open(ctx context.Context, t testing.TB, chrome *browser.Browser, path string) *browser.Page {
	t.Helper()
	p, err := chrome.Open(ctx, 1440, 900)
	must(t, err)
	must(t, p.Go(ctx, b.url+path))
	must(t, p.Until(ctx, "document.getElementById('state').textContent === 'live'"))
	return p
}

func startBrowser(ctx context.Context, t testing.TB) *browser.Browser {
	t.Helper()
	chrome, err := browser.Start(ctx, os.Stderr)
	must(t, err)
	t.Cleanup(func() { must(t, chrome.Close()) })
	return chrome
}
