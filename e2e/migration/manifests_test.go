// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// kind is a kind of old manifest: a Deployment, so that its pods come again when their node is drained.
type kind struct {
	// name is that of the file in testdata/pods, of the Deployment and of the label of its pods.
	name string
	// says is what the manifest asks for.
	says string
	// config is that of the node that the pods run on.
	config string
	// shares reports whether pods of the kind share a device.
	shares bool
	// dra is whether the manifest is for NVIDIA's DRA driver, and the device plugin is nothing to it.
	dra bool
}

var kinds = []kind{
	{name: "gpu", says: "`nvidia.com/gpu: 1`", config: "mixed"},
	{name: "product", says: "`nvidia.com/gpu: 2`, node selector `nvidia.com/gpu.product`", config: "mixed"},
	{name: "partition", says: "`nvidia.com/mig-1g.10gb: 1`, strategy `mixed`, two pods", config: "mixed"},
	{name: "partition-share", says: "`nvidia.com/mig-2g.20gb.shared: 1`, two replicas, two pods", config: "mixed", shares: true},
	{name: "time-slice", says: "`nvidia.com/gpu.shared: 1`, four replicas by time-slicing, two pods", config: "sliced", shares: true},
	{name: "mps", says: "`nvidia.com/gpu: 1`, four replicas by MPS, two pods", config: "mps", shares: true},
	{name: "claim", says: "claim of class `gpu.nvidia.com`", config: "mixed", dra: true},
}

// create makes the objects of a manifest, whose pods get the local image and look at what they have.
func (k kind) create(t *testing.T, ctx context.Context) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "pods", k.name+".yaml"))
	must(t, err)
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		if !bytes.Contains(document, []byte("kind: Deployment\n")) {
			_, err := env.client.Kubectl(ctx, string(document), "apply", "-n", namespace, "-f", "-")
			must(t, err)
			continue
		}
		var d appsv1.Deployment
		must(t, yaml.UnmarshalStrict(document, &d))
		workload.MakeLocal(&d.Spec.Template.Spec)
		_, err := env.client.Kube.AppsV1().Deployments(namespace).Create(ctx, &d, metav1.CreateOptions{})
		must(t, err)
	}
}

// pods waits until the pods of the kind are all that its Deployment wants, and all run, or all wait for a node.
func (k kind) pods(t *testing.T, ctx context.Context, run bool) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	what := map[bool]string{true: "run", false: "wait"}[run]
	must(t, workload.Until(ctx, "the pods of "+k.name+" to "+what, func(ctx context.Context) (bool, string, error) {
		d, err := env.client.Kube.AppsV1().Deployments(namespace).Get(ctx, k.name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		list, err := env.client.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + k.name})
		if err != nil {
			return false, "", err
		}
		pods = list.Items
		ok, state := len(pods) == int(*d.Spec.Replicas), ""
		for i := range pods {
			p := &pods[i]
			fits := waits(p)
			if run {
				fits = p.Status.Phase == corev1.PodRunning
			}
			ok = ok && fits && p.DeletionTimestamp == nil
			state += p.Name + ": " + workload.Describe(p) + "\n"
		}
		return ok, state, nil
	}))
	return pods
}

// waits reports whether the scheduler found no node for a pod.
func waits(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
}

// owner is who gave a pod its devices.
func owner(p *corev1.Pod) string {
	if len(p.Status.ResourceClaimStatuses) > 0 || p.Status.ExtendedResourceClaimStatus != nil {
		return "Cleave"
	}
	return "device plugin"
}

// held are the devices of a pod, as its container sees them.
type held struct {
	pod, node, owner string
	kind             kind
	gpus, partitions []string
	mps              bool
}

// look looks into the containers of pods.
func (k kind) look(t *testing.T, ctx context.Context, pods []corev1.Pod) (all []held) {
	t.Helper()
	for i := range pods {
		p := &pods[i]
		seen, err := env.client.Look(ctx, namespace, p.Name, "main")
		must(t, err)
		all = append(all, held{
			pod: p.Name, node: p.Spec.NodeName, owner: owner(p), kind: k, gpus: seen.GPUNodes(), partitions: seen.Capabilities(),
			mps: slices.ContainsFunc(seen.Environment, func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_PIPE_DIRECTORY=") }),
		})
	}
	return all
}

// String is a cell of the table for one pod.
func (h held) String() string {
	what := fmt.Sprintf("%d GPU", len(h.gpus))
	if len(h.gpus) > 1 {
		what += "s"
	}
	if n := len(h.partitions) / 2; n > 0 { // a device file each for the GPU instance and the compute instance
		what = fmt.Sprintf("%d partition", n)
	}
	if h.mps {
		what += " by MPS"
	}
	return h.owner + ": " + what
}

// sameDevices reports whether two pods have the same devices.
func sameDevices(a, b held) bool {
	return a.node == b.node && slices.Equal(a.gpus, b.gpus) && slices.Equal(a.partitions, b.partitions)
}

// cell says what all pods of a kind see.
func cell(all []held) string {
	if len(all) == 1 {
		return all[0].String()
	}
	for _, h := range all[1:] {
		if h.String() != all[0].String() {
			return fmt.Sprint(all) // no pod of a Deployment should differ from another
		}
	}
	if all[0].kind.shares && len(all[0].partitions) == 0 {
		return all[0].String() + " each, shared" // of pods that start at once, both may get the same
	}
	if sameDevices(all[0], all[1]) {
		return all[0].String() + ", the same for both"
	}
	return all[0].String() + " each"
}

// conflicts are pods that have a device which another one has, and should not.
func conflicts(all []held) (found []string) {
	for i, a := range all {
		for _, b := range all[:i] {
			if a.node != b.node {
				continue
			}
			if a.owner != b.owner {
				found = append(found, fmt.Sprintf("%s has devices of %s, %s on the same node of %s", a.pod, a.owner, b.pod, b.owner))
			}
			if a.kind.shares && a.kind.name == b.kind.name {
				continue
			}
			both := len(a.partitions) > 0 && len(b.partitions) > 0
			if both && overlap(a.partitions, b.partitions) || !both && overlap(a.gpus, b.gpus) {
				found = append(found, fmt.Sprintf("%s and %s have a device in common: %v %v, %v %v",
					a.pod, b.pod, a.gpus, a.partitions, b.gpus, b.partitions))
			}
		}
	}
	return found
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}
