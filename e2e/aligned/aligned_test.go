// SPDX-License-Identifier: Apache-2.0

package aligned

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const namespace = metav1.NamespaceDefault

// A claim that cleave claim prints is aligned over three drivers, as the containers see; what cannot be aligned waits, and explain says why.
func TestAligned(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	form := fmt.Sprintf("1 gpu, %d cpus, 2 nics, one numa node", len(env.cpus[0]))
	env.template(t, ctx, "near", form, "--numa-attribute=dra.net/numaNode")
	var numas []string
	for _, name := range []string{"first", "second"} {
		env.pod(t, ctx, name, "near")
		pod, err := env.client.WaitRunning(ctx, namespace, name)
		must(t, err)
		numas = append(numas, env.checkAligned(t, ctx, pod))
	}
	slices.Sort(numas)
	if diff := cmp.Diff([]string{"0", "1"}, numas); diff != "" {
		t.Errorf("each pod has all CPUs of a NUMA node (-want +got):\n%s", diff)
	}
	env.pod(t, ctx, "third", "near") // CPUs are used up
	env.waits(t, ctx, "third", "cpus: 2 devices are shared, and too little is left")
	must(t, env.client.Kube.CoreV1().Pods(namespace).Delete(ctx, "first", metav1.DeleteOptions{}))
	_, err := env.client.WaitRunning(ctx, namespace, "third")
	must(t, err)
}

// Neither driver's release publishes the standard attribute. When one does, docs/topology.md and shortform.PreviousNUMANodeAttribute are to be
// changed.
func TestAligned_Waits(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	env.template(t, ctx, "standard", "1 gpu, 1 nic, one numa node")
	env.pod(t, ctx, "standard", "standard")
	env.waits(t, ctx, "standard", "no combination satisfies matchAttribute resource.kubernetes.io/numaNode")
	env.template(t, ctx, "many", "5 gpus, 1 nic, one numa node", "--numa-attribute=dra.net/numaNode")
	env.pod(t, ctx, "many", "many")
	env.waits(t, ctx, "many", "no combination satisfies matchAttribute dra.net/numaNode")
	// A GPU's card is under the same PCIe root, by the attribute that all have.
	env.template(t, ctx, "root", "1 gpu, 1 nic, one pcie root")
	env.pod(t, ctx, "root", "root")
	pod, err := env.client.WaitRunning(ctx, namespace, "root")
	must(t, err)
	devices := env.devices(t, ctx, pod, "resource.kubernetes.io/pcieRoot")
	if len(devices) != 2 || devices[0].value != devices[1].value || devices[0].value == "" {
		t.Errorf("GPU and card are under different roots: %v", devices)
	}
}

// template applies what cleave claim prints.
func (b *bed) template(t *testing.T, ctx context.Context, name, form string, flags ...string) {
	t.Helper()
	printed, err := exec.CommandContext(ctx, b.bin("cleave"), append([]string{"claim", form, "--name", name}, flags...)...).Output()
	must(t, err)
	_, err = b.client.Kubectl(ctx, string(printed), "create", "-n", namespace, "-f", "-")
	must(t, err)
}

// pod creates a pod, which goes when the test ends.
func (b *bed) pod(t *testing.T, ctx context.Context, name, template string) {
	t.Helper()
	must(t, workload.Create(ctx, b.client.Kube, namespace, []runtime.Object{workload.Pod(name, template)}))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if t.Failed() {
			t.Log(b.client.Diagnosis(namespace))
		}
		_, err := b.client.Kubectl(ctx, "", "delete", "pod", "-n", namespace, name, "--ignore-not-found", "--grace-period=1")
		must(t, err)
	})
}

// device is one of a pod with an attribute of it.
type device struct{ driver, name, value string }

// devices are those of a pod's claims.
func (b *bed) devices(t *testing.T, ctx context.Context, pod *corev1.Pod, attribute resourceapi.QualifiedName) (found []device) {
	t.Helper()
	published, err := b.client.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, s := range pod.Status.ResourceClaimStatuses {
		claim, err := b.client.Kube.ResourceV1().ResourceClaims(namespace).Get(ctx, *s.ResourceClaimName, metav1.GetOptions{})
		must(t, err)
		for _, r := range claim.Status.Allocation.Devices.Results {
			d := device{driver: r.Driver, name: r.Device}
			for i := range published.Items {
				slice := &published.Items[i].Spec
				at := slices.IndexFunc(slice.Devices, func(p resourceapi.Device) bool { return slice.Driver == r.Driver && p.Name == r.Device })
				if at < 0 {
					continue
				}
				switch a := slice.Devices[at].Attributes[attribute]; {
				case a.IntValue != nil:
					d.value = fmt.Sprint(*a.IntValue)
				case a.StringValue != nil:
					d.value = *a.StringValue
				}
			}
			found = append(found, d)
		}
	}
	return found
}

// checkAligned checks a pod's devices, and that its container has them. It returns the NUMA node.
func (b *bed) checkAligned(t *testing.T, ctx context.Context, pod *corev1.Pod) string {
	t.Helper()
	devices := b.devices(t, ctx, pod, "dra.net/numaNode")
	numa, of := devices[0].value, map[string]int{}
	var cards []string
	for _, d := range devices {
		of[d.driver]++
		if d.value != numa || d.value == "" {
			t.Errorf("%s: devices of several NUMA nodes: %v", pod.Name, devices)
		}
		for card, path := range nics {
			if d.driver == "dra.net" && strings.HasSuffix(strings.NewReplacer(":", "-", ".", "-").Replace(path), strings.TrimPrefix(d.name, "pci-")) {
				cards = append(cards, card)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{"dra.cpu": 1, "dra.net": 2, workload.Driver: 1}, of); diff != "" {
		t.Errorf("%s: devices (-want +got):\n%s", pod.Name, diff)
	}
	slices.Sort(cards)
	inside := func(command string) []string {
		out, err := b.client.Kubectl(ctx, "", "exec", "-n", namespace, pod.Name, "--", "sh", "-c", command)
		must(t, err)
		return strings.Fields(out)
	}
	if diff := cmp.Diff(cards, inside("cd /sys/class/net; echo nic*")); diff != "" {
		t.Errorf("%s: network cards (-want +got):\n%s", pod.Name, diff)
	}
	var want []int
	if numa == "0" || numa == "1" {
		want = b.cpus[numa[0]-'0']
	}
	// A range such as 0-1 is written as its ends.
	ends := strings.FieldsFunc(strings.Join(inside("grep Cpus_allowed_list: /proc/self/status | cut -f 2"), ""), func(r rune) bool { return r == '-' || r == ',' })
	if len(want) == 0 || len(ends) == 0 || ends[0] != fmt.Sprint(want[0]) || ends[len(ends)-1] != fmt.Sprint(want[len(want)-1]) {
		t.Errorf("%s: runs on the CPUs %v, want %v", pod.Name, ends, want)
	}
	seen, err := b.client.Look(ctx, namespace, pod.Name, "main")
	must(t, err)
	if len(seen.GPUNodes()) != 1 {
		t.Errorf("%s: GPUs %v", pod.Name, seen.GPUNodes())
	}
	return numa
}

// waits waits until explain gives a reason for a pod that is not scheduled.
func (b *bed) waits(t *testing.T, ctx context.Context, pod, reason string) {
	t.Helper()
	must(t, workload.Until(ctx, "the explanation of pod "+pod, func(ctx context.Context) (bool, string, error) {
		out, err := exec.CommandContext(ctx, b.bin("cleave"), "explain", "pod", pod, "-n", namespace, "--kubeconfig", b.client.Cluster.Kubeconfig()).CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return false, "", err
		}
		return strings.Contains(string(out), reason), string(out), nil
	}))
	got, err := b.client.Kube.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	must(t, err)
	if got.Spec.NodeName != "" {
		t.Errorf("%s runs", pod)
	}
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
