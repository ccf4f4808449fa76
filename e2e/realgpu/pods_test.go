// SPDX-License-Identifier: Apache-2.0

package realgpu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// answer is a line of cuda-probe.
type answer struct {
	Event           string `json:"event"`
	Multiprocessors int    `json:"multiprocessors"`
	Got             int64  `json:"got"`
	Code            int    `json:"code"`
	Right           bool   `json:"right"`
}

const gib = int64(1) << 30

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start creates a pod with a claim for a device of a class, none for "", and waits until it runs.
func (b *bed) start(ctx context.Context, t *testing.T, name, class string, amounts ...string) *corev1.Pod {
	t.Helper()
	b.create(ctx, t, name, class, "", amounts...)
	pod, err := b.WaitRunning(ctx, namespace, name)
	must(t, err)
	return pod
}

// create creates a pod that runs a command, or nothing.
func (b *bed) create(ctx context.Context, t *testing.T, name, class, command string, amounts ...string) {
	t.Helper()
	template := name
	if class == "" {
		template = ""
	}
	b.createPod(ctx, t, b.pod(name, template, command), class, amounts...)
}

// pod is one that runs a command, or nothing, with a claim from a template unless that is "".
func (b *bed) pod(name, template, command string) *corev1.Pod {
	pod := workload.Pod(name, template)
	main := &pod.Spec.Containers[0]
	main.Image, main.Command = probeImage, []string{"/bin/busybox", "sh", "-c", "trap 'exit 0' TERM; " + command +
		"; busybox sleep 100000 & wait"}
	if command == "" {
		main.Command[3] = "trap 'exit 0' TERM; busybox sleep 100000 & wait"
	}
	return pod
}

// createPod creates a pod, and its template of a claim for a device of a class unless that is "".
func (b *bed) createPod(ctx context.Context, t *testing.T, pod *corev1.Pod, class string, amounts ...string) {
	t.Helper()
	name := pod.Name
	objects := []runtime.Object{pod}
	if class != "" {
		objects = []runtime.Object{workload.Template(name, resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{workload.Request("gpu", class, 1, amounts...)}}}), pod}
	}
	must(t, workload.Create(ctx, b.Kube, namespace, objects))
	t.Cleanup(func() { b.remove(t, name, false) })
}

// remove deletes a pod and its template, and waits until the pod is gone. What is gone already is no error.
func (b *bed) remove(t *testing.T, name string, forced bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	opts := metav1.DeleteOptions{}
	if forced {
		now := int64(0)
		opts.GracePeriodSeconds = &now
	}
	_ = b.Kube.CoreV1().Pods(namespace).Delete(ctx, name, opts)                                         // it may be gone
	_ = b.Kube.ResourceV1().ResourceClaimTemplates(namespace).Delete(ctx, name, metav1.DeleteOptions{}) // likewise
	if err := b.WaitGone(ctx, namespace, name); err != nil {
		t.Error(err)
	}
}

// probe runs cuda-probe in a pod's container with commands and returns its answers.
func (b *bed) probe(ctx context.Context, t *testing.T, pod string, commands ...string) []answer {
	t.Helper()
	out, err := b.Kubectl(ctx, strings.Join(commands, "\n")+"\n", "--namespace", namespace, "exec", "-i", pod, "--", "/bin/cuda-probe")
	must(t, err)
	t.Logf("cuda-probe in %s: %s", pod, strings.ReplaceAll(strings.TrimSpace(out), "\n", " "))
	var answers []answer
	for line := range strings.Lines(out) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("read an answer of cuda-probe in %s: %v: %s", pod, err, out)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(commands)+1 || answers[0].Event != "ready" {
		t.Fatalf("cuda-probe in %s does not work: %s", pod, out)
	}
	return answers
}

// inPod runs a command in a pod.
func (b *bed) inPod(ctx context.Context, t *testing.T, pod string, command ...string) string {
	t.Helper()
	out, err := b.Kubectl(ctx, "", append([]string{"--namespace", namespace, "exec", pod, "--"}, command...)...)
	if err != nil {
		t.Error(err)
	}
	return out
}

func TestPod_WholeGPU(t *testing.T) {
	ctx, b := onGPU(t, 2*time.Minute)
	plain := b.start(ctx, t, "plain", "")
	if out := b.inPod(ctx, t, plain.Name, "/bin/busybox", "ls", "/dev"); strings.Contains(out, "nvidia") {
		t.Errorf("a pod without a claim has device nodes of GPUs: %s", out)
	}
	b.wholeGPU(ctx, t, b.start(ctx, t, "whole", "gpu.cleave.dev"))
}

// TestPod_UserNamespace uses the GPU as root of a user namespace, who is nobody outside of it.
func TestPod_UserNamespace(t *testing.T) {
	ctx, b := onGPU(t, 2*time.Minute)
	pod := b.pod("mapped", "mapped", "")
	own := false
	pod.Spec.HostUsers = &own
	b.createPod(ctx, t, pod, "gpu.cleave.dev")
	pod, err := b.WaitRunning(ctx, namespace, pod.Name)
	must(t, err)
	if out := b.inPod(ctx, t, pod.Name, "/bin/busybox", "cat", "/proc/self/uid_map"); strings.Fields(out)[1] == "0" {
		t.Errorf("the pod has no user namespace: %s", out)
	}
	b.wholeGPU(ctx, t, pod)
}

// wholeGPU checks that a pod sees the GPU that it was allocated and can use it.
func (b *bed) wholeGPU(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	devices, err := b.Devices(ctx, pod)
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices of the pod: %v, %v", devices, err)
	}
	if out := b.inPod(ctx, t, pod.Name, "nvidia-smi", "-L"); !strings.Contains(out, devices[0].UUID) {
		t.Errorf("nvidia-smi in the pod does not list %s: %s", devices[0].UUID, out)
	} else {
		t.Log(out)
	}
	answers := b.probe(ctx, t, pod.Name, fmt.Sprintf("take %d %d", 8*gib, gib), "work 1000", "drop")
	if answers[1].Got != 8*gib || !answers[2].Right {
		t.Errorf("8 GiB and a kernel on the GPU: %+v", answers)
	}
}

func TestPod_MPS(t *testing.T) {
	ctx, b := onGPU(t, 3*time.Minute)
	small := b.start(ctx, t, "small", "mps.cleave.dev", "cores=25", "memory=4Gi")
	large := b.start(ctx, t, "large", "mps.cleave.dev", "cores=50", "memory=8Gi")
	first := b.probe(ctx, t, small.Name, fmt.Sprintf("take %d %d", 2*gib, gib/4), "work 1000", fmt.Sprintf("take %d %d", 4*gib, gib/4))
	if first[1].Got != 2*gib || !first[2].Right {
		t.Errorf("2 GiB of 4 and a kernel: %+v", first)
	}
	if first[3].Code != 2 || first[3].Got >= 2*gib {
		t.Errorf("more than 4 GiB: %+v, want CUDA_ERROR_OUT_OF_MEMORY (2)", first[3])
	}
	second := b.probe(ctx, t, large.Name, fmt.Sprintf("take %d %d", 6*gib, gib/4), "work 1000")
	if second[1].Got != 6*gib || !second[2].Right {
		t.Errorf("6 GiB of 8 and a kernel: %+v", second)
	}
	if got := []int{first[0].Multiprocessors, second[0].Multiprocessors}; got[0] >= got[1] || got[0] == 0 {
		t.Errorf("multiprocessors of 25%% and 50%%: %v", got)
	}
	// Whole GPUs are not to be had while shares of the only GPU are.
	b.create(ctx, t, "excluded", "gpu.cleave.dev", "")
	if err := b.WaitEvent(ctx, namespace, "excluded", "FailedScheduling", "cannot allocate all claims"); err != nil {
		t.Error(err)
	}
}

// busy keeps the GPU busy, and ends with the container only.
const busy = `while true; do echo "work 400000"; done | /bin/cuda-probe > /tmp/answers`

func TestPod_ForcedDeletion(t *testing.T) {
	ctx, b := onGPU(t, 3*time.Minute)
	for _, class := range []string{"gpu.cleave.dev", "mps.cleave.dev"} {
		b.create(ctx, t, "holder", class, busy)
		if _, err := b.WaitRunning(ctx, namespace, "holder"); err != nil {
			t.Fatal(err)
		}
		b.remove(t, "holder", true)
		began := time.Now()
		b.start(ctx, t, "next", "gpu.cleave.dev")
		t.Logf("after forced deletion of a pod of %s whose kernel ran, the next one runs after %s", class, time.Since(began))
		if answers := b.probe(ctx, t, "next", "work 1000"); !answers[1].Right {
			t.Errorf("a kernel in the next pod: %+v", answers)
		}
		b.remove(t, "next", false)
	}
}

// TestPlugin_Killed kills plugin and supervisor while pods use a GPU through MPS.
func TestPlugin_Killed(t *testing.T) {
	ctx, b := onGPU(t, 3*time.Minute)
	b.create(ctx, t, "works", "mps.cleave.dev", busy, "cores=25", "memory=4Gi")
	if _, err := b.WaitRunning(ctx, namespace, "works"); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"plugin", "mps-supervisor"} {
		killed := 0
		for _, pid := range pids(t, "cleave-node") {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
			want := map[string]string{"plugin": "kubelet-plugin", "mps-supervisor": "mps-supervisor"}[program]
			if slices.Contains(strings.Split(string(command), "\x00"), want) {
				if p, err := os.FindProcess(pid); err == nil && p.Kill() == nil {
					killed++
				}
			}
		}
		if killed == 0 {
			t.Errorf("no %s to kill", program)
		}
	}
	b.start(ctx, t, "after", "mps.cleave.dev", "cores=25", "memory=4Gi")
	if answers := b.probe(ctx, t, "after", "work 1000"); !answers[1].Right {
		t.Errorf("a kernel after the restart: %+v", answers)
	}
	before := b.inPod(ctx, t, "works", "/bin/busybox", "wc", "-l", "/tmp/answers")
	if err := workload.Until(ctx, "the program in the pod to go on", func(context.Context) (bool, string, error) {
		after := b.inPod(ctx, t, "works", "/bin/busybox", "wc", "-l", "/tmp/answers")
		return before != after, after, nil
	}); err != nil {
		t.Error(err)
	}
	if out := b.inPod(ctx, t, "works", "/bin/busybox", "sh", "-c", "busybox grep error /tmp/answers || true"); out != "" {
		t.Errorf("answers with an error: %s", out)
	}
}
