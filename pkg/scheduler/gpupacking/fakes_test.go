// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

const driver = "gpu.cleave.dev"

// bed is the plugin in a cluster of fakes.
type bed struct {
	fakeHandle
	t         testing.TB
	now       time.Time
	plugin    *Plugin
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	recorder  *events.FakeRecorder
	activated []string
	nodes     []framework.NodeInfo
	claims    map[string]*resourceapi.ResourceClaim
	pending   map[types.UID]*resourceapi.AllocationResult
	// refuseGather is how often the scheduler will not say what is allocated.
	refuseGather int
}

func newBed(t testing.TB, args string, objects ...runtime.Object) *bed {
	t.Helper()
	client := fake.NewClientset(objects...)
	client.Resources = []*metav1.APIResourceList{{
		GroupVersion: resourceapi.SchemeGroupVersion.String(), APIResources: []metav1.APIResource{{Name: "devicetaintrules"}},
	}}
	b := &bed{
		t: t, client: client, informers: newInformers(client), recorder: events.NewFakeRecorder(10),
		claims: map[string]*resourceapi.ResourceClaim{}, pending: map[types.UID]*resourceapi.AllocationResult{},
	}
	b.snapshot = func() []framework.NodeInfo { return b.nodes }
	p, err := new(Shared).New(t.Context(), &runtime.Unknown{Raw: []byte(args)}, b)
	must(t, err)
	b.plugin = p.(*Plugin)
	b.plugin.cluster.tie = func(types.UID, string) uint64 { return 0 } // by name
	b.plugin.cluster.changed = func(string) {}                         // nobody looks for collisions meanwhile
	b.plugin.checks.now = func() time.Time { return b.now }
	b.plugin.checks.last = b.now // none is due yet
	b.informers.Start(t.Context().Done())
	b.informers.WaitForCacheSync(t.Context().Done())
	<-b.plugin.cluster.ahead // tests look at views without the lock
	t.Cleanup(b.informers.Shutdown)
	return b
}

func newInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(client, 0)
}

func (b *bed) SharedInformerFactory() informers.SharedInformerFactory { return b.informers }
func (b *bed) ClientSet() kubernetes.Interface                        { return b.client }
func (b *bed) SharedDRAManager() framework.SharedDRAManager           { return fakeDRA{b} }
func (b *bed) EventRecorder() events.EventRecorderLogger              { return b.recorder }
func (b *bed) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	b.activated = append(b.activated, slices.Sorted(maps.Keys(pods))...)
}

// addNode adds a node, and what is published for it.
func (b *bed) addNode(name string, published ...*resourceapi.ResourceSlice) *fakeNode {
	n := &fakeNode{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}}
	b.nodes = append(b.nodes, n)
	b.publish(published...)
	return n
}

// publish stores slices, and tells of it.
func (b *bed) publish(published ...*resourceapi.ResourceSlice) {
	b.t.Helper()
	for _, s := range published {
		must(b.t, b.informers.Resource().V1().ResourceSlices().Informer().GetIndexer().Add(s))
		b.plugin.cluster.follow(s)
	}
}

func (b *bed) addRule(rule *resourceapi.DeviceTaintRule) {
	b.t.Helper()
	must(b.t, b.informers.Resource().V1().DeviceTaintRules().Informer().GetIndexer().Add(rule))
	b.plugin.cluster.followAll()
}

func (b *bed) removeRule(rule *resourceapi.DeviceTaintRule) {
	b.t.Helper()
	must(b.t, b.informers.Resource().V1().DeviceTaintRules().Informer().GetIndexer().Delete(rule))
	b.plugin.cluster.followAll()
}

// withdraw undoes publish.
func (b *bed) withdraw(published ...*resourceapi.ResourceSlice) {
	b.t.Helper()
	for _, s := range published {
		must(b.t, b.informers.Resource().V1().ResourceSlices().Informer().GetIndexer().Delete(s))
		b.plugin.cluster.follow(s)
	}
}

func (b *bed) addNodes(model string, names ...string) {
	b.t.Helper()
	for _, name := range names {
		b.addNode(name, slicesOf(b.t, model, name)...)
	}
}

// slicesOf are what a node of a model publishes that offers everything.
func slicesOf(t testing.TB, model, name string) []*resourceapi.ResourceSlice {
	t.Helper()
	list := nodeslices.Objects(offering(t, model), driver, name)
	var all []*resourceapi.ResourceSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// offering is a node of a model that offers everything.
func offering(t testing.TB, model string) *policy.Node {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	node := &policy.Node{Node: session.Node()}
	for range node.GPUs {
		node.Offers = append(node.Offers, policy.Offer{
			Whole: true, Partitions: &policy.PartitionOffer{Mode: policy.OnDemand}, MPS: &policy.Sharing{Shares: 10},
		})
	}
	return node
}

// pod is one with a claim for devices of a class, which stands for a type or a profile.
func (b *bed) pod(name, class string, change ...func(*resourceapi.ResourceClaimSpec)) *corev1.Pod {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("claim-" + name)}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
	for _, c := range change {
		c(&claim.Spec)
	}
	b.claims[name] = claim
	b.storeClaim(claim)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Annotations: map[string]string{}}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}}
	return pod
}

// preFilter are the nodes that a pod is narrowed to, or the status.
func (b *bed) preFilter(pod *corev1.Pod) (*fakeState, string) {
	b.t.Helper()
	state := &fakeState{data: map[framework.StateKey]framework.StateData{}}
	result, status := b.plugin.PreFilter(b.t.Context(), state, pod, b.nodes)
	if !status.IsSuccess() {
		return state, status.Code().String()
	}
	return state, strings.Join(slices.Sorted(maps.Keys(result.NodeNames)), " ")
}

// best is the node of a cycle with the highest score, of equal ones the first.
func (b *bed) best(state *fakeState, pod *corev1.Pod) string {
	b.t.Helper()
	b.plugin.PreScore(b.t.Context(), state, pod, b.nodes)
	best, most := "", int64(-1)
	for _, n := range b.nodes {
		if score, _ := b.plugin.Score(b.t.Context(), state, pod, n); score > most {
			best, most = n.Node().Name, score
		}
	}
	return best
}

// place schedules a pod as the scheduler and the allocator would, up to Reserve.
func (b *bed) place(pod *corev1.Pod) (node string, state *fakeState) {
	b.t.Helper()
	state, nodes := b.preFilter(pod)
	if nodes == "Skip" || read(state) == nil {
		b.t.Fatalf("pod %s: %s", pod.Name, nodes)
	}
	node = b.best(state, pod)
	claim := b.claims[pod.Name]
	b.pending[claim.UID] = b.allocate(node, claim)
	if status := b.plugin.Reserve(b.t.Context(), state, pod, node); !status.IsSuccess() {
		b.t.Fatal(status)
	}
	return node, state
}

// allocate is what the measure predicts, which e2e/packing holds against the allocator.
func (b *bed) allocate(node string, claim *resourceapi.ResourceClaim) *resourceapi.AllocationResult {
	b.t.Helper()
	c := b.plugin.cluster
	v := c.views[node][0]
	c.refresh(v)
	requests, err := c.cache.Requests(b.t.Context(), v.node, b.demand(claim))
	must(b.t, err)
	uses, ok, err := v.state.Fit(requests...)
	if !ok || err != nil {
		b.t.Fatalf("claim %s does not fit on node %s: %v", claim.Name, node, err)
	}
	result := &resourceapi.AllocationResult{}
	for i, u := range uses {
		d := v.node.Model.Devices[u.Device]
		r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v.driver, Pool: v.node.Pool(u.Device), Device: d.Name}
		if d.Shared {
			share := types.UID(fmt.Sprint(claim.UID, i))
			r.ShareID, r.ConsumedCapacity = &share, map[resourceapi.QualifiedName]resource.Quantity{}
			for _, capacity := range d.Capacities {
				r.ConsumedCapacity[resourceapi.QualifiedName(capacity.Name)] = *resource.NewMilliQuantity(capacity.Default, resource.DecimalSI)
			}
		}
		result.Devices.Results = append(result.Devices.Results, r)
	}
	return result
}

// store is the API server's event for a claim, as for one that is allocated now, or gone.
func (b *bed) store(name string) {
	b.t.Helper()
	claim := b.claims[name].DeepCopy()
	claim.Status.Allocation = b.pending[claim.UID]
	b.storeClaim(claim)
	b.claims[name] = claim
	delete(b.pending, claim.UID)
	b.plugin.cluster.follow(claim)
}

// storeClaim is what the informer does before it tells of it.
func (b *bed) storeClaim(claim *resourceapi.ResourceClaim) {
	b.t.Helper()
	must(b.t, b.claimStore().Add(claim))
}

func (b *bed) claimStore() cache.Indexer {
	return b.informers.Resource().V1().ResourceClaims().Informer().GetIndexer()
}

func (b *bed) remove(name string) {
	b.t.Helper()
	claim := b.claims[name]
	must(b.t, b.claimStore().Delete(claim))
	delete(b.claims, name)
	b.plugin.cluster.follow(claim)
}

// fakeDRA is the scheduler's view of claims and classes.
type fakeDRA struct{ *bed }

func (f fakeDRA) ResourceClaims() framework.ResourceClaimTracker     { return fakeClaims{bed: f.bed} }
func (f fakeDRA) ResourceSlices() framework.ResourceSliceLister      { return nil }
func (f fakeDRA) DeviceClasses() framework.DeviceClassLister         { return fakeClasses{} }
func (f fakeDRA) DeviceClassResolver() framework.DeviceClassResolver { return fakeClasses{} }

type fakeClaims struct {
	framework.ResourceClaimTracker
	bed *bed
}

func (f fakeClaims) Get(_, name string) (*resourceapi.ResourceClaim, error) {
	if c, ok := f.bed.claims[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("claim %s: %w", name, framework.ErrNotFound)
}

func (f fakeClaims) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return f.bed.pending[uid]
}

// fakeClasses has a class for each type and profile, and one for devices of another driver.
type fakeClasses struct{}

// nvidiaPrefix begins the names of classes for NVIDIA's own driver.
const nvidiaPrefix = "nvidia-"

func (fakeClasses) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (fakeClasses) Get(name string) (*resourceapi.DeviceClass, error) {
	c := &resourceapi.DeviceClass{}
	c.Name = name
	driver, kind := driver, name
	if rest, ok := strings.CutPrefix(name, nvidiaPrefix); ok {
		driver, kind = nvidia.DriverName, rest
	}
	expression := fmt.Sprintf(`device.driver == %q && (device.attributes[%q].type == %q || device.attributes[%q].?profile.orValue("") == %q)`,
		driver, driver, kind, driver, kind)
	switch name {
	case "missing":
		return nil, fmt.Errorf("class %s: %w", name, framework.ErrNotFound)
	case "channel":
		expression = `device.driver == "compute-domain.nvidia.com" && device.attributes["compute-domain.nvidia.com"].type == "channel"`
	case "nic":
		expression = `device.driver == "nic.example.com"`
	case "any":
		expression = "true"
	case "broken":
		expression = `device.attributes["none"].none == "x"`
	}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	return c, nil
}

func (f fakeClasses) GetDeviceClass(name corev1.ResourceName) *resourceapi.DeviceClass {
	if class, ok := strings.CutPrefix(string(name), "nvidia.com/"); ok {
		c, _ := f.Get(class)
		return c
	}
	return nil
}

type fakeState struct {
	framework.CycleState
	data  map[framework.StateKey]framework.StateData
	group bool
}

func (s *fakeState) Read(key framework.StateKey) (framework.StateData, error) {
	if d, ok := s.data[key]; ok {
		return d, nil
	}
	return nil, framework.ErrNotFound
}
func (s *fakeState) Write(key framework.StateKey, d framework.StateData) { s.data[key] = d }
func (s *fakeState) IsPodGroupSchedulingCycle() bool                     { return s.group }
