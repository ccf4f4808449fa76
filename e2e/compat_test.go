// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// compatibleModel has GPUs in other places than model: a second plugin on the cluster's node offers GPUs of its own.
const compatibleModel = "hgx-h200"

// startCompatible starts a second plugin on the cluster's node, by the name of NVIDIA's driver, with GPUs and an MPS
// supervisor of its own, and makes NVIDIA's DeviceClasses.
func (s *space) startCompatible(ctx context.Context) *node.Node {
	s.Helper()
	dir, err := env.cluster.GuestDir("nvidia")
	s.must(err)
	s.must(env.client.CreateFile(ctx, "", filepath.Join(env.source, "deployments", "nvidia-compatible", "deviceclasses.yaml")))
	n, err := node.Create(ctx, node.Options{Cluster: env.cluster, Bin: programsDir, Model: compatibleModel, Dir: dir, Driver: nvidia.DriverName})
	s.must(err)
	// Two plugins of one machine are of one boot: while this one restarts, the other may look after its claims.
	const bootID = "proc/sys/kernel/random/boot_id"
	boot, err := os.ReadFile(filepath.Join(env.node.Root(), bootID))
	s.must(err)
	s.must(os.WriteFile(filepath.Join(n.Root(), bootID), boot, 0o600))
	s.must(errors.Join(n.Supervisor.Start(ctx), n.Start(ctx), n.WaitReady(ctx)))
	atEnd(s.T, func(ctx context.Context) {
		if s.Failed() {
			s.Logf("the log of the compatible plugin ends with:\n%s", n.LogTail(40))
		}
		// Pods end only while their plugin unprepares their claims.
		s.must(env.kube.CoreV1().Pods(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		s.must(env.client.WaitGone(ctx, s.name, ""))
		s.must(errors.Join(n.Stop(), n.Supervisor.Stop()))
		for _, name := range []string{"gpu.nvidia.com", "mig.nvidia.com"} {
			s.must(env.kube.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{}))
		}
		// The kubelet does the same half a minute later.
		s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + nvidia.DriverName}))
		s.must(os.RemoveAll(dir))
	})
	s.must(env.client.WaitSlices(ctx, nvidia.DriverName, nil))
	return n
}

// compatibleManifest reads manifests written for NVIDIA's driver, with other profiles for those of H100 boards.
func (s *space) compatibleManifest(name string) []runtime.Object {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(env.source, "e2e", "packing", "testdata", "nvidia-compatible", name+".yaml"))
	s.must(err)
	objects, err := workload.Decode([]byte(strings.NewReplacer("1g.10gb", "1g.18gb", "3g.40gb", "3g.71gb", "h100", "h200").Replace(string(data))))
	s.must(err)
	return objects
}

// cleared waits until a node has no records, nothing of MPS and no interval, and its GPUs no partitions.
func (s *space) cleared(ctx context.Context, n *node.Node) {
	s.Helper()
	s.plugin.waitRecords(ctx, n)
	s.eventually(ctx, "nothing to be left", func(ctx context.Context) (bool, string, error) {
		var left []string
		for _, p := range processes() {
			if strings.Contains(p.Command, "nvidia-cuda-mps") && strings.Contains(p.Environment, "="+n.Supervisor.Dir()) {
				left = append(left, fmt.Sprintf("process %d %s", p.PID, p.Command))
			}
		}
		shown, err := n.Sim(ctx, "show")
		if err != nil {
			return false, "", err
		}
		for line := range strings.Lines(shown) {
			if strings.Contains(line, "EXCLUSIVE") || strings.Contains(line, "time slice") || strings.Contains(line, "GPU instance") {
				left = append(left, strings.TrimSpace(line))
			}
		}
		return len(left) == 0, strings.Join(left, "\n"), nil
	})
}

func TestCompatible_SharedClaim(t *testing.T) {
	ctx, s := newSpace(t)
	n := s.startCompatible(ctx)
	objects := s.compatibleManifest("sharing")
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok && strings.HasPrefix(pod.Name, "mps-") {
			workload.RunCUDA(pod)
		}
	}
	s.create(ctx, objects...)

	sliced := s.pods.running(ctx, "time-sliced")
	for _, c := range []string{"first", "second"} {
		seen := s.pods.look(ctx, sliced.Name, c)
		own := func(v string) bool {
			return strings.HasPrefix(v, "CLEAVE_") && !strings.HasPrefix(v, "CLEAVE_GPU_UUID=")
		}
		if len(seen.GPUNodes()) != 1 || slices.ContainsFunc(seen.Environment, own) {
			t.Errorf("container %s sees %v and %v, want one GPU and of Cleave's variables only its UUID", c, seen.GPUNodes(), seen.Environment)
		}
	}
	shown, err := n.Sim(ctx, "show")
	s.must(err)
	if !strings.Contains(strings.ToLower(shown), "long") {
		t.Errorf("no GPU has long time slices:\n%s", shown)
	}

	first, second := s.pods.running(ctx, "mps-a"), s.pods.running(ctx, "mps-b")
	a, b := s.pods.served(ctx, first), s.pods.served(ctx, second)
	if diff := cmp.Diff(workload.Served{Server: a.Server, Threads: 50, Memory: 10 << 30}, a); diff != "" || a != b {
		t.Errorf("pods with MPS have %+v and %+v, want one server with half of the threads and 10 GiB for each (-want +got):\n%s", a, b, diff)
	}
	if one, other := s.pods.device(ctx, first), s.pods.device(ctx, sliced); one == other || strings.Contains(one, "mps") {
		t.Errorf("the claims have %s and %s, want a whole GPU each", one, other)
	}
	s.plugin.waitRecords(ctx, n, "mps", claimNames(sliced)[0])

	// Both live on while the plugin is away, and it finds them again.
	s.must(n.Kill())
	s.must(n.Start(ctx))
	s.must(n.WaitReady(ctx))
	s.pods.delete(ctx, "mps-a")
	if again := s.pods.served(ctx, second); again != b {
		t.Errorf("after the other pod of its claim is gone, the server is %+v, want %+v", again, b)
	}
	s.pods.delete(ctx, "mps-b")
	s.pods.delete(ctx, "time-sliced")
	s.cleared(ctx, n)
}

// claimNames are the claims that were made for a pod.
func claimNames(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Status.ResourceClaimStatuses {
		names = append(names, *c.ResourceClaimName)
	}
	return names
}

func TestCompatible_GPUsAndPartitions(t *testing.T) {
	ctx, s := newSpace(t)
	n := s.startCompatible(ctx)
	objects := s.compatibleManifest("gpus")
	// The extended resource is that of two DeviceClasses while two drivers run on the node.
	objects = slices.DeleteFunc(objects, func(o runtime.Object) bool {
		pod, ok := o.(*corev1.Pod)
		return ok && pod.Name == "extended"
	})
	s.create(ctx, append(objects, s.compatibleManifest("mig")...)...)
	for pod, want := range map[string]int{"one": 1, "two": 2} {
		seen := s.pods.look(ctx, s.pods.running(ctx, pod).Name, "main")
		if got := seen.GPUNodes(); len(got) != want {
			t.Errorf("pod %s sees %v, want %d GPUs", pod, got, want)
		}
	}
	parent := s.pods.running(ctx, "one-parent")
	devices := s.pods.devices(ctx, parent)
	if len(devices) != 2 || !strings.Contains(devices[0], "-mig-") || devices[0][:len("gpu-0000-00-00-0")] != devices[1][:len("gpu-0000-00-00-0")] {
		t.Errorf("pod one-parent has %v, want two partitions of one GPU", devices)
	}
	s.pods.running(ctx, "by-capacity")
	for _, pod := range []string{"one", "two", "one-parent", "by-capacity"} {
		s.pods.delete(ctx, pod)
	}
	s.cleared(ctx, n)
}

func TestCompatible_UnsupportedParameters(t *testing.T) {
	ctx, s := newSpace(t)
	s.startCompatible(ctx)
	spec := workload.WithParameters(workload.ClaimSpec("mig.nvidia.com", 1), nvidia.DriverName,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing",
		"timeSlicingConfig":{"interval":"Long"}}}`)
	s.create(ctx, claimPod("hopeful", spec)...)
	s.events.wait(ctx, s.name, "hopeful", prepareFailed, "a GPU has one interval for all of its partitions")
}

// A partition that one claim has alone may have an MPS server of its own.
func TestCompatible_MPSInPartition(t *testing.T) {
	ctx, s := newSpace(t)
	n := s.startCompatible(ctx)
	spec := workload.WithParameters(workload.ClaimSpec("mig.nvidia.com", 1), nvidia.DriverName,
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS",
		"mpsConfig":{"defaultActiveThreadPercentage":50}}}`)
	pod := s.pods.run(ctx, mpsPod("service", spec))
	if device := s.pods.device(ctx, pod); !strings.Contains(device, "-mig-") {
		t.Errorf("the pod has %s, want a partition", device)
	}
	if got := s.pods.served(ctx, pod); got.Threads != 50 {
		t.Errorf("the pod's server grants %d %% of threads, want 50", got.Threads)
	}
	s.pods.delete(ctx, "service")
	s.cleared(ctx, n)
}

// otherDriver answers the kubelet as NVIDIA's driver does.
type otherDriver struct {
	registerapi.UnimplementedRegistrationServer
}

func (otherDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: nvidia.DriverName, SupportedVersions: []string{"v1.DRAPlugin"}}, nil
}

func TestCompatible_NVIDIADriverPresent(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.newPlainNodeOf(ctx, nil, node.Options{Driver: nvidia.DriverName})
	n.sim(ctx, "create", "--node", model)
	s.must(os.MkdirAll(n.RegistryDir(), 0o750))
	socket := filepath.Join(n.RegistryDir(), nvidia.DriverName+"-reg.sock")
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	s.must(err)
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, otherDriver{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	left := s.otherSlice(ctx, n.name)

	s.must(n.Start(ctx))
	s.must(n.WaitReady(ctx)) // it lives
	refuses := func(says string) {
		t.Helper()
		s.events.waitOnNode(ctx, n.name, corev1.EventTypeWarning, "DriverNameTaken", says)
		s.eventually(ctx, "the plugin to say "+says, func(ctx context.Context) (bool, string, error) {
			state := fmt.Sprint(n.Readiness(ctx))
			return strings.Contains(state, says), state, nil
		})
		if got := s.published.slices(ctx, n.name); len(got) != 1 || got[0].Name != left {
			t.Errorf("there are %d slices, want only that of the other driver", len(got))
		}
		if _, err := os.Lstat(n.Socket()); !os.IsNotExist(err) {
			t.Errorf("the plugin's socket is there: %v", err)
		}
	}
	refuses("another driver named gpu.nvidia.com serves the kubelet")
	server.Stop()
	refuses("has device gpu-0, which Cleave did not write")
	s.must(env.kube.ResourceV1().ResourceSlices().Delete(ctx, left, metav1.DeleteOptions{}))
	n.waitOffered(ctx, gpus)
}

// otherSlice is a slice as NVIDIA's driver writes it, for a node.
func (s *space) otherSlice(ctx context.Context, nodeName string) (name string) {
	s.Helper()
	var devices []resourceapi.Device
	s.must(json.Unmarshal([]byte(`[{"name":"gpu-0","attributes":{"type":{"string":"gpu"}},"capacity":{"memory":{"value":"81559Mi"}}}]`), &devices))
	made, err := env.kube.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: nodeName[:min(len(nodeName), 40)] + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: nvidia.DriverName, NodeName: &nodeName, Devices: devices,
			Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return made.Name
}
