// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// marker is what docs/upgrade.md has pods name, for the operator to see them.
	marker = "nvidia.com/gpu.claim"
	// training begins the names of pods that the operator is told to wait for.
	training = "training"
	// template is of claims for a GPU.
	template = "gpu"
)

// drivers are the stand-ins of all nodes.
type drivers struct {
	managers []*manager
	failed   chan error // has room for one failure of each
}

// serveDrivers has drivers replaced until the test ends.
func serveDrivers(t *testing.T, version string) *drivers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &drivers{failed: make(chan error, len(env.places))}
	var running sync.WaitGroup
	for _, p := range env.places {
		m := &manager{place: p, loaded: version}
		d.managers = append(d.managers, m)
		running.Go(func() {
			if err := m.run(ctx); err != nil {
				d.failed <- err
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return d
}

// err is what failed meanwhile.
func (d *drivers) err() error {
	select {
	case err := <-d.failed:
		return err
	default:
		return env.running()
	}
}

// TestUpgrade goes through upgrades of the driver; each step needs those before.
func TestUpgrade(t *testing.T) {
	tests.Bound(t, timeout)
	d := serveDrivers(t, "1")
	workload.RunSteps(t, timeout, diagnosis, []workload.Step{
		{Name: "a driver and pods on every node", Run: d.installed},
		{Name: "node by node, no pod is on a reloaded driver", Run: d.upgraded},
		{Name: "pods use the new driver", Run: d.used},
		{Name: "a pod that the operator does not see holds it up, and goes on", Run: d.heldUp},
	})
}

func (d *drivers) installed(t *testing.T, ctx context.Context) {
	for _, ds := range []*appsv1.DaemonSet{
		daemonSet(driverApp, driverLabel, "1", env.places[0].dir), daemonSet(validatorApp, validatorLabel, "1", ""),
	} {
		_, err := env.client.Kube.AppsV1().DaemonSets(namespace).Create(ctx, ds, metav1.CreateOptions{})
		must(t, err)
	}
	d.waitUpgraded(t, ctx, "1", env.places, nil)
	objects := []runtime.Object{workload.Template(template, workload.ClaimSpec(workload.Driver, 1))}
	for _, p := range env.places {
		pod := p.pod(training + "-" + p.Name())
		pod.Labels = map[string]string{"app": training}
		pod.Spec.Containers[0].Command = []string{"/bin/sh", "-c", "until [ -e /driver/finish ]; do sleep 1; done"}
		mount(&pod.Spec, &pod.Spec.Containers[0], p.dir)
		objects = append(objects, pod)
	}
	must(t, workload.Create(ctx, env.client.Kube, demo, objects))
	_, err := env.client.Kube.AppsV1().Deployments(demo).Create(ctx, seen(), metav1.CreateOptions{})
	must(t, err)
	for _, p := range env.places {
		_, err := env.client.WaitRunning(ctx, demo, training+"-"+p.Name())
		must(t, err)
	}
	for node, n := range waitServing(t, ctx) {
		if n != 1 {
			t.Errorf("node %s has %d pods of the service", node, n)
		}
	}
}

// pod with a claim for a GPU of the node.
func (p *place) pod(name string) *corev1.Pod {
	pod := workload.Pod(name, template)
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.Name()}
	return pod
}

// seen is a service whose pods have native claims, use the driver, and are seen by the operator.
func seen() *appsv1.Deployment {
	pod := workload.Pod("", template)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{marker: resource.MustParse("0")}
	workload.RunBurn(pod, env.places[0].gpus.Root(), "sm 40")
	return workload.Spread("service", int32(len(env.places)), map[string]string{"app": "service"}, pod)
}

// waitServing waits until all pods of the service run, and returns how many, by node.
func waitServing(t *testing.T, ctx context.Context) (nodes map[string]int) {
	t.Helper()
	must(t, workload.Until(ctx, "the pods of the service to run", func(ctx context.Context) (bool, string, error) {
		list, err := env.client.Kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: "app=service"})
		if err != nil {
			return false, "", err
		}
		nodes = map[string]int{}
		running := 0
		var state []string
		for i := range list.Items {
			p := &list.Items[i]
			if s := p.Status.ContainerStatuses; p.DeletionTimestamp == nil && len(s) == 1 && s[0].Ready {
				running++
				nodes[p.Spec.NodeName]++
			}
			state = append(state, p.Name+" on "+p.Spec.NodeName+": "+workload.Describe(p))
		}
		return running == len(env.places) && len(list.Items) == running, strings.Join(state, "\n"), nil
	}))
	return nodes
}

// setVersion changes the driver that its DaemonSet is to have.
func setVersion(t *testing.T, ctx context.Context, version string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{%q:%q}}}}}`, versionKey, version)
	_, err := env.client.Kube.AppsV1().DaemonSets(namespace).Patch(ctx, driverApp, types.MergePatchType, patch, metav1.PatchOptions{})
	must(t, err)
}

// waitUpgraded waits until nodes have a version of the driver and take pods. meanwhile sees the states of the nodes that it looks at.
func (d *drivers) waitUpgraded(t *testing.T, ctx context.Context, version string, on []*place, meanwhile func(*place, string) error) {
	t.Helper()
	must(t, workload.Until(ctx, "driver "+version+" on every node", func(ctx context.Context) (bool, string, error) {
		if err := d.err(); err != nil {
			return false, "", err
		}
		all := true
		var states []string
		for _, p := range on {
			n, err := env.client.Kube.CoreV1().Nodes().Get(ctx, p.Name(), metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			state := n.Labels[stateLabel]
			if meanwhile != nil {
				if err := meanwhile(p, state); err != nil {
					return false, "", err
				}
			}
			ok, err := p.hasDriver(ctx, version)
			if err != nil {
				return false, "", err
			}
			states = append(states, fmt.Sprintf("%s: %s, cordoned %t, driver %t", p.Name(), state, n.Spec.Unschedulable, ok))
			all = all && ok && state == done && !n.Spec.Unschedulable
		}
		return all, strings.Join(states, "; "), nil
	}))
}

// hasDriver reports whether the node's driver pod is ready and of a version.
func (p *place) hasDriver(ctx context.Context, version string) (bool, error) {
	m := manager{place: p}
	pods, err := m.pods(ctx, driverApp)
	if err != nil || len(pods) != 1 || len(pods[0].Status.ContainerStatuses) != 1 {
		return false, err
	}
	return pods[0].Annotations[versionKey] == version && pods[0].Status.ContainerStatuses[0].Ready, nil
}

// upgraded replaces the driver of all nodes. Training ends once the operator waits for it.
func (d *drivers) upgraded(t *testing.T, ctx context.Context) {
	history := record(t, ctx)
	setVersion(t, ctx, "2")
	d.waitUpgraded(t, ctx, "2", env.places, func(p *place, state string) error {
		if state != waitJobs {
			return nil
		}
		return os.WriteFile(p.HostPath(filepath.Join(p.dir, "finish")), nil, 0o600)
	})
	pods, err := d.managers[0].pods(ctx, driverApp)
	must(t, err)
	events := history.stop(t, ctx, &pods[0])
	walks, broken := check(events)
	for _, b := range broken {
		t.Error(b)
	}
	happened := map[string]map[string]int{}
	for _, e := range events {
		if happened[e.node] == nil {
			happened[e.node] = map[string]int{}
		}
		happened[e.node][e.what]++
	}
	for _, m := range d.managers {
		if diff := cmp.Diff(append([]string{done}, walk...), walks[m.Name()]); diff != "" {
			t.Errorf("how node %s was upgraded (-want +got):\n%s", m.Name(), diff)
		}
		if h := happened[m.Name()]; h[left] != 1 || h[ready] != 2 || h[asked] == 0 || h[went] != h[asked]+1 {
			t.Errorf("on node %s happened %v; want one driver to leave, pods to be evicted, and training to end by itself", m.Name(), h)
		}
		if n := m.replaced.Load(); n != 1 {
			t.Errorf("the driver of node %s was replaced %d times", m.Name(), n)
		}
		t.Logf("node %s: %v, attempts that found the driver in use: %d", m.Name(), happened[m.Name()], m.refused.Load())
	}
}

// used waits until Cleave offers all GPUs again, and pods get them.
func (d *drivers) used(t *testing.T, ctx context.Context) {
	waitServing(t, ctx)
	for _, p := range env.places {
		must(t, env.client.WaitEvent(ctx, metav1.NamespaceDefault, p.Name(), "DriverReleased", "nvidia.com/gpu.deploy.", paused))
		p.waitOffered(t, ctx)
		pod := p.pod("after-" + p.Name())
		must(t, workload.Create(ctx, env.client.Kube, demo, []runtime.Object{pod}))
		_, err := env.client.WaitRunning(ctx, demo, pod.Name)
		must(t, err)
		must(t, env.client.Kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	must(t, d.err())
}

// waitOffered waits until no device of the node is tainted.
func (p *place) waitOffered(t *testing.T, ctx context.Context) {
	t.Helper()
	selector := resourceapi.ResourceSliceSelectorDriver + "=" + workload.Driver + "," +
		resourceapi.ResourceSliceSelectorNodeName + "=" + p.Name()
	must(t, workload.Until(ctx, "the GPUs of node "+p.Name(), func(ctx context.Context) (bool, string, error) {
		list, err := env.client.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return false, "", err
		}
		devices, tainted := 0, 0
		for i := range list.Items {
			for _, device := range list.Items[i].Spec.Devices {
				devices++
				tainted += min(len(device.Taints), 1)
			}
		}
		return devices > 0 && tainted == 0, fmt.Sprintf("%d devices, of which tainted %d", devices, tainted), nil
	}))
}

// heldUp has a pod with a native claim and nothing by which the operator knows it: it is not evicted, drain or not, and its driver stays
// until somebody ends it.
func (d *drivers) heldUp(t *testing.T, ctx context.Context) {
	yes, one := "true", d.managers[0]
	for _, p := range env.places[1:] {
		must(t, env.client.LabelNode(ctx, p.Name(), "nvidia.com/gpu-driver-upgrade.skip", &yes))
	}
	pod := one.pod("unseen")
	workload.RunBurn(pod, one.gpus.Root(), "sm 40")
	must(t, workload.Create(ctx, env.client.Kube, demo, []runtime.Object{pod}))
	before, err := env.client.WaitRunning(ctx, demo, pod.Name)
	must(t, err)
	must(t, workload.Until(ctx, "the pod to open its GPU", func(ctx context.Context) (bool, string, error) {
		shown, err := one.gpus.Sim(ctx, "show")
		return strings.Contains(shown, "(nvml-sim) on GPU"), shown, err
	}))
	refused := one.refused.Load()
	setVersion(t, ctx, "3")
	must(t, workload.Until(ctx, "two attempts that find the driver in use, at last by the pod alone", func(context.Context) (bool, string, error) {
		n := one.refused.Load() - refused
		reason, _ := one.reason.Load().(string)
		return n >= 2 && strings.Contains(reason, "in use by process") && strings.Contains(reason, "(nvml-sim)"), fmt.Sprintf("%d attempts: %s", n, reason), d.err()
	}))
	diff, err := env.client.Undisturbed(ctx, before)
	must(t, err)
	if diff != "" {
		t.Errorf("the pod that holds the upgrade up was disturbed (-before +after):\n%s", diff)
	}
	must(t, env.client.Kube.CoreV1().Pods(demo).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	d.waitUpgraded(t, ctx, "3", env.places[:1], nil)
	one.waitOffered(t, ctx)
	waitServing(t, ctx)
}
