// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/records"
)

// patience bounds every test, and its clean-up once more.
const patience = 2 * time.Minute

// space is the namespace of one test. Its methods end the test where something is not as it has to be.
type space struct {
	*testing.T
	name string
}

// newSpace creates a namespace for a test. When the test ends, all in it is removed, and the GPUs have to be free.
func newSpace(t *testing.T, labels map[string]string) (context.Context, *space) {
	t.Helper()
	name := strings.ToLower(regexp.MustCompile(`[^0-9A-Za-z]+`).ReplaceAllString(strings.TrimPrefix(t.Name(), "Test"), "-"))
	s := &space{t, name[:min(len(name), 60)]}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	_, err := env.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name, Labels: labels}}, metav1.CreateOptions{})
	s.must(err)
	t.Cleanup(s.cleanUp)
	return ctx, s
}

// must ends the test if there is an error.
func (s *space) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits until a condition holds.
func (s *space) eventually(ctx context.Context, what string, done func(context.Context) (ok bool, state string, err error)) {
	s.Helper()
	start := time.Now()
	s.must(workload.Until(ctx, what, done))
	s.logSlow(what, start)
}

// logSlow says what took long, for those who want a faster suite.
func (s *space) logSlow(what string, start time.Time) {
	s.Helper()
	if took := time.Since(start); took > 4*time.Second {
		s.Logf("waited %s for %s", took.Round(100*time.Millisecond), what)
	}
}

// cleanUp removes pods, then claims, and checks that nothing is allocated any more.
func (s *space) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.Failed() {
		s.Log(s.diagnosis(ctx))
	}
	if !env.node.Running() {
		s.startPlugin(ctx)
	}
	pods := env.kube.CoreV1().Pods(s.name)
	claims := env.kube.ResourceV1().ResourceClaims(s.name)
	s.must(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(env.client.WaitGone(ctx, s.name, ""))
	s.must(env.kube.ResourceV1().ResourceClaimTemplates(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.eventually(ctx, "the claims to go", func(ctx context.Context) (bool, string, error) {
		list, err := claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d claims", len(list.Items)), err
	})
	s.waitRecords(ctx, env.node)
	s.must(env.kube.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}))
}

// diagnosis is what a person wants to see of a test that failed.
func (s *space) diagnosis(ctx context.Context) string {
	var b strings.Builder
	if pods, err := env.kube.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range pods.Items {
			fmt.Fprintf(&b, "pod %s: %s\n", pods.Items[i].Name, workload.Describe(&pods.Items[i]))
		}
	}
	if events, err := env.kube.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{}); err == nil {
		for _, e := range events.Items {
			fmt.Fprintf(&b, "event on %s: %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	fmt.Fprintf(&b, "the plugin's log ends with:\n%s", env.node.LogTail(40))
	return b.String()
}

// create makes objects in the test's namespace.
func (s *space) create(ctx context.Context, objects ...runtime.Object) {
	s.Helper()
	s.must(workload.Create(ctx, env.kube, s.name, objects))
}

// createExample makes the objects of a file of deployments/examples.
func (s *space) createExample(ctx context.Context, name string) {
	s.Helper()
	s.must(env.client.CreateFile(ctx, s.name, filepath.Join(env.source, "deployments", "examples", name+".yaml")))
}

// running waits until a pod runs.
func (s *space) running(ctx context.Context, name string) *corev1.Pod {
	s.Helper()
	start := time.Now()
	pod, err := env.client.WaitRunning(ctx, s.name, name)
	s.must(err)
	s.logSlow("pod "+name+" to run", start)
	return pod
}

// delete deletes a pod and waits until it is gone.
func (s *space) delete(ctx context.Context, name string) {
	s.Helper()
	s.must(env.kube.CoreV1().Pods(s.name).Delete(ctx, name, metav1.DeleteOptions{}))
	s.gone(ctx, name)
}

// gone waits until a pod is no longer there.
func (s *space) gone(ctx context.Context, name string) {
	s.Helper()
	start := time.Now()
	s.must(env.client.WaitGone(ctx, s.name, name))
	s.logSlow("pod "+name+" to go", start)
}

// unschedulable waits until the scheduler says that a pod fits nowhere, and returns its message.
func (s *space) unschedulable(ctx context.Context, name string) string {
	s.Helper()
	var message string
	s.eventually(ctx, "the scheduler to turn pod "+name+" down", func(ctx context.Context) (bool, string, error) {
		pod, err := env.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				message = c.Message
				// Before its claim exists a pod is unschedulable too.
				return !strings.Contains(message, "waiting for dynamic resource controller"), message, nil
			}
		}
		return false, workload.Describe(pod), nil
	})
	return message
}

// devices are the names of the devices that a pod's claims were allocated, sorted.
func (s *space) devices(ctx context.Context, pod *corev1.Pod) []string {
	s.Helper()
	allocated, err := env.client.Devices(ctx, pod)
	s.must(err)
	var names []string
	for _, a := range allocated {
		names = append(names, a.Device)
	}
	slices.Sort(names)
	return names
}

// checkSees is checkDevices, and checks that every container has the driver's library where Debian has it.
func (s *space) checkSees(ctx context.Context, pod *corev1.Pod, devices []string) {
	s.Helper()
	s.checkDevices(ctx, pod, devices)
	for _, c := range pod.Spec.Containers {
		seen, err := env.client.Look(ctx, s.name, pod.Name, c.Name)
		s.must(err)
		if diff := cmp.Diff([]string{"/usr/lib/x86_64-linux-gnu/libcuda.so.1"}, seen.Libraries); diff != "" {
			s.Errorf("libraries that container %s of pod %s finds (-want +got):\n%s", c.Name, pod.Name, diff)
		}
	}
}

// checkDevices checks that every container of a pod sees the device nodes of exactly these devices, and what any CUDA
// program needs besides.
func (s *space) checkDevices(ctx context.Context, pod *corev1.Pod, devices []string) {
	s.Helper()
	published := devicesOf(s.slices(ctx, env.cluster.NodeName()))
	var want []string
	for _, name := range devices {
		d := find(published, name)
		if d == nil {
			s.Fatalf("pod %s has device %s, which is not published", pod.Name, name)
		}
		want = append(want, "/dev/nvidia"+strconv.FormatInt(*d.Attributes["minor"].IntValue, 10))
	}
	slices.Sort(want)
	want = slices.Compact(want) // partitions of one GPU share its node
	for _, c := range pod.Spec.Containers {
		seen, err := env.client.Look(ctx, s.name, pod.Name, c.Name)
		s.must(err)
		if diff := cmp.Diff(want, seen.GPUNodes()); diff != "" {
			s.Errorf("GPUs that container %s of pod %s sees (-want +got):\n%s", c.Name, pod.Name, diff)
		}
		for _, control := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} {
			if !slices.Contains(seen.DeviceNodes, control) {
				s.Errorf("container %s of pod %s has no %s, only %v", c.Name, pod.Name, control, seen.DeviceNodes)
			}
		}
		if !slices.Contains(seen.Environment, "NVIDIA_VISIBLE_DEVICES=void") {
			s.Errorf("container %s of pod %s lacks NVIDIA_VISIBLE_DEVICES=void, which keeps other hooks away: %v", c.Name, pod.Name, seen.Environment)
		}
	}
}

// published are the whole GPUs of the cluster's node, in the order in which the scheduler tries them.
func (s *space) published(ctx context.Context) []resourceapi.Device {
	s.Helper()
	return wholeGPUs(s.slices(ctx, env.cluster.NodeName()))
}

// waitOrder waits until the whole GPUs are published in an order, given as digits of their numbers.
func (s *space) waitOrder(ctx context.Context, want string) []resourceapi.Device {
	s.Helper()
	var published []resourceapi.Device
	s.eventually(ctx, "the whole GPUs to be published in the order "+want, func(ctx context.Context) (bool, string, error) {
		published = s.published(ctx)
		names := deviceNames(published)
		numbers := slices.Sorted(slices.Values(names))
		got := ""
		for _, name := range names {
			got += strconv.Itoa(slices.Index(numbers, name))
		}
		return got == want, got, nil
	})
	return published
}

// lastFirst is the order of the whole GPUs while all are free.
const lastFirst = "76543210"

// lastHeld is that once a claim has taken the first of them.
const lastHeld = "32107654"

// wholeGPUs are the devices that are no partitions.
func wholeGPUs(list []resourceapi.ResourceSlice) []resourceapi.Device {
	return slices.DeleteFunc(devicesOf(list), func(d resourceapi.Device) bool { return *d.Attributes["type"].StringValue != "gpu" })
}

// slices are the ResourceSlices of a node, in order of their names.
func (s *space) slices(ctx context.Context, nodeName string) []resourceapi.ResourceSlice {
	s.Helper()
	list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
	s.must(err)
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func devicesOf(list []resourceapi.ResourceSlice) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, s := range list {
		devices = append(devices, s.Spec.Devices...)
	}
	return devices
}

// find returns the device of that name, or nil.
func find(devices []resourceapi.Device, name string) *resourceapi.Device {
	for i := range devices {
		if devices[i].Name == name {
			return &devices[i]
		}
	}
	return nil
}

// waitRecords waits until the claims of the test's namespace that a node has records of are these.
func (s *space) waitRecords(ctx context.Context, n *node.Node, claims ...string) {
	s.Helper()
	slices.Sort(claims)
	s.eventually(ctx, fmt.Sprintf("the plugin to hold for namespace %s the claims %v and no others", s.name, claims), func(context.Context) (bool, string, error) {
		have, err := readRecords(n)
		if err != nil {
			return false, "", err
		}
		maps.DeleteFunc(have, func(_ string, r *records.Record) bool { return r.Claim.Namespace != s.name })
		var names []string
		for _, r := range have {
			names = append(names, r.Claim.Name)
		}
		slices.Sort(names)
		return slices.Equal(names, claims), fmt.Sprintf("%v", names), nil
	})
}

// readRecords reads the records of a node, by claim UID. One that is corrupt is passed over.
func readRecords(n *node.Node) (map[string]*records.Record, error) {
	entries, err := os.ReadDir(n.Records())
	if err != nil {
		return nil, fmt.Errorf("read the plugin's records: %w", err)
	}
	found := map[string]*records.Record{}
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(n.Records(), e.Name()))
		if os.IsNotExist(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("read the plugin's records: %w", err)
		}
		if r, err := records.Decode(data); err == nil {
			found[uid] = r
		}
	}
	return found, nil
}

// startPlugin starts the plugin of the cluster's node again and waits until it is ready.
func (s *space) startPlugin(ctx context.Context) {
	s.Helper()
	s.must(env.node.Start(ctx))
	s.must(env.node.WaitReady(ctx))
}
