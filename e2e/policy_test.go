// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// pick sets the label that picks the node's policy.
func (s *space) pick(ctx context.Context, policy string) {
	s.Helper()
	s.labelNode(ctx, v1alpha1.PolicyLabel, &policy)
}

// usePolicies starts the plugin of the cluster's node with a directory of policies, for as long as the test runs.
func (s *space) usePolicies(ctx context.Context, label string, policies map[string]string) (dir string) {
	s.Helper()
	dir = s.TempDir()
	for name, rules := range policies {
		s.writePolicy(dir, name, rules)
	}
	s.restartWith(ctx, "--policy", dir)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.labelNode(ctx, v1alpha1.PolicyLabel, nil)
		s.restartWith(ctx)
	})
	s.pick(ctx, label)
	return dir
}

func (s *space) restartWith(ctx context.Context, flags ...string) {
	s.Helper()
	s.must(env.node.Stop())
	env.node.SetFlags(flags...)
	s.startPlugin(ctx)
}

// writePolicy writes a policy's file, as an editor that replaces it.
func (s *space) writePolicy(dir, name, rules string) {
	s.Helper()
	path := filepath.Join(dir, name+".yaml")
	s.must(os.WriteFile(path+"~", []byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: "+rules+"\n"), 0o600))
	s.must(os.Rename(path+"~", path))
}

// offer are the devices that a node publishes, sorted: of each its type, with a ! if it is withdrawn and a # if somebody else
// hands it out, and how often that is there. "gpu=7 gpu!=1".
func (s *space) offer(ctx context.Context, nodeName string) string {
	s.Helper()
	list := s.slices(ctx, nodeName)
	if len(list) == 0 || int64(len(list)) != list[0].Spec.Pool.ResourceSliceCount {
		return "not whole"
	}
	return offerOf(list)
}

func offerOf(list []resourceapi.ResourceSlice) string {
	counts := map[string]int{}
	for _, d := range devicesOf(list) {
		word := *d.Attributes["type"].StringValue
		for _, t := range d.Taints {
			word += map[string]string{publish.TaintWithdrawn: "!", publish.TaintConflict: "#"}[t.Key]
		}
		counts[word]++
	}
	var words []string
	for word, n := range counts {
		words = append(words, fmt.Sprintf("%s=%d", word, n))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// waitOffer waits until a node publishes just these devices.
func (s *space) waitOffer(ctx context.Context, nodeName, want string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("node %s to offer %q", nodeName, want), func(ctx context.Context) (bool, string, error) {
		got := s.offer(ctx, nodeName)
		return got == want, got, nil
	})
}

// nodeEvent waits for an Event about a node that says something.
func (s *space) nodeEvent(ctx context.Context, nodeName, kind, reason, says string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("an Event %s on node %s that says %q", reason, nodeName, says), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + nodeName + ",reason=" + reason})
		if err != nil {
			return false, "", err
		}
		var seen []string
		for _, e := range list.Items {
			seen = append(seen, e.Message)
			if e.Type == kind && strings.Contains(e.Message, says) {
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%q", seen), nil
	})
}

// waitMetric waits until a metric has a value; "" until it is not there.
func (s *space) waitMetric(ctx context.Context, n *node.Node, name, value string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("metric %s to be %q", name, value), func(ctx context.Context) (bool, string, error) {
		all, err := n.Metrics(ctx)
		return err == nil && all[name] == value, all[name], err
	})
}

func TestPolicy_LabelChanged(t *testing.T) {
	ctx, s := newSpace(t, nil)
	name := env.cluster.NodeName()
	dir := s.usePolicies(ctx, "training", map[string]string{
		"training":  "[{tiers: [exclusive]}]",
		"inference": "[{tiers: [timeSlice], timeSlice: {shares: 2}}]",
	})
	s.waitOffer(ctx, name, "gpu=8")
	s.create(ctx, gpuPod("trains", 1)...)
	trains := s.running(ctx, "trains")
	held := s.device(ctx, trains)

	s.pick(ctx, "inference")
	s.waitOffer(ctx, name, "gpu!=1 timeslice=8")
	if d := find(s.published(ctx), held); d == nil {
		t.Errorf("GPU %s, which is allocated, is not published", held)
	}
	s.nodeEvent(ctx, name, corev1.EventTypeNormal, "PolicyApplied", `policy "inference" is active`)
	s.waitMetric(ctx, env.node, `cleave_policy_info{policy="inference"}`, "1")
	s.waitMetric(ctx, env.node, `cleave_policy_info{policy="training"}`, "")
	s.create(ctx, gpuPod("waits", 1)...)
	s.unschedulable(ctx, "waits")
	s.create(ctx, claimPod("shares", shareSpec(timeSliceClass))...)
	shares := s.running(ctx, "shares")
	if shared := s.device(ctx, shares); shared == held+"-timeslice" {
		t.Errorf("a share is of %s, which another claim has whole", held)
	}
	s.checkUndisturbed(ctx, trains)
	s.delete(ctx, "trains")
	s.waitOffer(ctx, name, "timeslice=8")

	s.writePolicy(dir, "inference", "[{tiers: [timeSlice], timeSlice: {shares: 3}}]")
	s.eventually(ctx, "three shares of each GPU", func(ctx context.Context) (bool, string, error) {
		for _, d := range devicesOf(s.slices(ctx, name)) {
			if shares := d.Capacity["shares"].Value; shares.Value() != 3 {
				return false, d.Name + " has " + shares.String(), nil
			}
		}
		return true, "", nil
	})
	s.checkUndisturbed(ctx, shares)
	s.pick(ctx, "training")
	s.waitOffer(ctx, name, "gpu=8 timeslice!=1")
	s.running(ctx, "waits")
	s.checkRecordsAgree(ctx)
}

func TestPolicy_Invalid(t *testing.T) {
	ctx, s := newSpace(t, nil)
	name := env.cluster.NodeName()
	dir := s.usePolicies(ctx, "training", map[string]string{"training": "[{tiers: [exclusive]}]"})
	s.waitOffer(ctx, name, "gpu=8")
	s.create(ctx, gpuPod("before", 1)...)
	before := s.running(ctx, "before")

	steps := []struct {
		what string
		do   func()
		says string
	}{
		{"a name that is none", func() { s.pick(ctx, "trainning") }, `there is no policy "trainning": choose one of training; policy "training" stays active`},
		{"a file with a slip", func() {
			s.writePolicy(dir, "training", "[{tires: [exclusive]}]")
			s.pick(ctx, "training")
		}, "tires"},
		{"what does not fit", func() { s.writePolicy(dir, "training", "[{tiers: [mig], mig: {layout: {3g.40gb: 3}}}]") }, `policy "training" does not fit this node`},
	}
	for _, step := range steps {
		step.do()
		s.nodeEvent(ctx, name, corev1.EventTypeWarning, "InvalidPolicy", step.says)
		s.waitMetric(ctx, env.node, "cleave_policy_invalid", "1")
		s.waitMetric(ctx, env.node, `cleave_policy_info{policy="training"}`, "1")
		if got := offerOf(s.slices(ctx, name)); got != "gpu=8" {
			t.Errorf("with %s the node offers %q", step.what, got)
		}
		s.must(env.node.Readiness(ctx))
	}
	published := s.slices(ctx, name) // in their order with a GPU held, by now
	s.must(env.node.Kill())
	s.startPlugin(ctx)
	s.waitMetric(ctx, env.node, "cleave_policy_invalid", "1")
	for i, now := range s.slices(ctx, name) {
		if now.ResourceVersion != published[i].ResourceVersion {
			t.Errorf("slice %s was written, though the active policy is the same", now.Name)
		}
	}
	s.create(ctx, gpuPod("meanwhile", 1)...)
	s.running(ctx, "meanwhile")
	s.checkUndisturbed(ctx, before)

	s.writePolicy(dir, "training", "[{tiers: [exclusive]}]")
	s.waitMetric(ctx, env.node, "cleave_policy_invalid", "0")
	s.nodeEvent(ctx, name, corev1.EventTypeNormal, "PolicyApplied", `policy "training" is active`)
}

func TestPolicy_DevicePluginConflict(t *testing.T) {
	ctx, s := newSpace(t, nil)
	name := env.cluster.NodeName()
	const alone = "gpu=8 mig=200 mps=8 timeslice=8"
	s.waitOffer(ctx, name, alone) // a plugin that was just restarted may still publish
	s.create(ctx, gpuPod("before", 1)...)
	before := s.running(ctx, "before")
	advertise := func(ctx context.Context, quantity any) {
		resources := map[string]any{"nvidia.com/gpu": quantity}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": resources, "allocatable": resources}})
		s.must(err)
		_, err = env.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		s.must(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		advertise(ctx, nil)
		s.waitOffer(ctx, name, alone)
	})
	advertise(ctx, "8")
	s.waitOffer(ctx, name, "gpu#=1 mig#=25 mps#=1 timeslice#=1")
	if d := find(s.published(ctx), s.device(ctx, before)); d == nil {
		t.Error("the GPU that is allocated is not published")
	}
	const says = "a device plugin offers GPUs of this node (status.capacity has nvidia.com/gpu: 8)"
	s.nodeEvent(ctx, name, corev1.EventTypeWarning, "GPUConflict", says)
	s.waitMetric(ctx, env.node, "cleave_conflict", "1")
	if err := env.node.Readiness(ctx); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("readiness says %v, want who else offers GPUs", err)
	}
	s.create(ctx, gpuPod("waits", 1)...)
	s.unschedulable(ctx, "waits")
	s.delete(ctx, "before")
	s.waitOffer(ctx, name, "")
	// A restart finds it out before it publishes anything.
	s.must(env.node.Stop())
	s.must(env.node.Start(ctx))
	s.readiness(ctx, says)
	s.waitOffer(ctx, name, "")
	advertise(ctx, "0")
	s.waitOffer(ctx, name, alone)
	s.must(env.node.WaitReady(ctx))
	s.nodeEvent(ctx, name, corev1.EventTypeNormal, "GPUConflictResolved", "they are published")
	s.running(ctx, "waits")
}

func TestPolicy_DriverConflict(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t, nil)
	dir := t.TempDir()
	s.writePolicy(dir, "default", "[{tiers: [exclusive]}]")
	n := s.newPlainNode(ctx, nil, "--policy", dir)
	s.sim(ctx, n, "create", "--node", "l40s")
	s.must(n.Start(ctx))
	s.offers(ctx, n, 4)
	first := s.deviceNames(ctx, n)[0]
	device := find(devicesOf(s.slices(ctx, n.name)), first)
	address := device.Attributes["resource.kubernetes.io/pciBusID"]
	other := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.name + "-other"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &n.name, Pool: resourceapi.ResourcePool{Name: n.name, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "theirs", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pciBusID": address}}},
	}}
	_, err := env.kube.ResourceV1().ResourceSlices().Create(ctx, other, metav1.CreateOptions{})
	s.must(err)
	ours := func(ctx context.Context) string {
		return offerOf(slices.DeleteFunc(s.slices(ctx, n.name), func(o resourceapi.ResourceSlice) bool { return o.Spec.Driver != v1alpha1.Group }))
	}
	waitOurs := func(want string) {
		t.Helper()
		s.eventually(ctx, "the plugin of "+n.name+" to offer "+want, func(ctx context.Context) (bool, string, error) {
			got := ours(ctx)
			return got == want, got, nil
		})
	}
	waitOurs("")
	s.nodeEvent(ctx, n.name, corev1.EventTypeWarning, "GPUConflict", fmt.Sprintf("driver gpu.example.com has GPU %s as device theirs", *address.StringValue))
	s.writePolicy(dir, "default", fmt.Sprintf("[{match: {pciAddresses: [%q]}, exclude: true}, {tiers: [exclusive]}]", *address.StringValue))
	waitOurs("gpu=3")
	s.writePolicy(dir, "default", "[{tiers: [exclusive]}]")
	waitOurs("")
	s.must(env.kube.ResourceV1().ResourceSlices().Delete(ctx, other.Name, metav1.DeleteOptions{}))
	waitOurs("gpu=4")
}
