// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/publish"
)

// hostNodes is set while simulated device nodes lie in this machine's own /dev.
var hostNodes atomic.Bool

// remakeDriver remakes the driver root of the cluster's node while no plugin runs, and the usual one when the test ends.
func (s *space) remakeDriver(ctx context.Context, flags ...string) {
	s.Helper()
	s.must(env.node.Stop())
	s.Cleanup(s.oldDriver)
	_, err := env.node.Sim(ctx, append([]string{"create", "--node", model, "--force"}, flags...)...)
	s.must(err)
}

// modprobe is what nvidia-modprobe does, run by an admin.
func (s *space) modprobe(ctx context.Context, args ...string) {
	s.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(programsDir, "nvml-sim"), args...)
	cmd.Args[0], cmd.Env = "nvidia-modprobe", []string{"NVML_SIM_ROOT=" + env.node.Root()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("nvidia-modprobe %v: %v: %s", args, err, out)
	}
}

// waitTainted waits until all devices of the node have a taint.
func (s *space) waitTainted(ctx context.Context, key string) {
	s.Helper()
	s.eventually(ctx, "all devices to have the taint "+key, func(ctx context.Context) (bool, string, error) {
		devices := devicesOf(s.slices(ctx, env.cluster.NodeName()))
		for _, d := range devices {
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == key }) {
				return false, d.Name + " has none", nil
			}
		}
		return len(devices) > 0, "no devices", nil
	})
}

// No CUDA program has run since the node started, so that nvidia-uvm is not loaded and its device nodes and nvidiactl are
// missing: the first container has them all the same.
func TestControlNodes_MissingAtStart(t *testing.T) {
	nodes := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	missing := func(s *space) {
		s.Helper()
		for _, name := range nodes {
			if _, err := os.Lstat(filepath.Join(env.node.Root(), "dev", name)); !errors.Is(err, fs.ErrNotExist) {
				s.Errorf("/dev/%s is there before the plugin starts: %v", name, err)
			}
		}
	}
	t.Run("made by the plugin", func(t *testing.T) {
		ctx, s := newSpace(t, nil)
		s.remakeDriver(ctx, "--no-control-nodes")
		missing(s)
		s.startPlugin(ctx)
		s.create(ctx, gpuPod("first", 1)...)
		pod := s.running(ctx, "first")
		s.checkSees(ctx, pod, s.devices(ctx, pod))
		s.waitRecords(ctx, env.node, ownClaim(pod))
	})
	t.Run("made by an admin", func(t *testing.T) {
		ctx, s := newSpace(t, nil)
		s.remakeDriver(ctx, "--no-control-nodes", "--no-modprobe")
		missing(s)
		s.startPlugin(ctx)
		s.waitEvent(ctx, "", env.cluster.NodeName(), "DriverIncomplete", "/dev/nvidiactl is missing", "nvidia-modprobe -c 255")
		s.waitTainted(ctx, publish.TaintIncomplete) // until then the slices of the plugin before are there, which have no taint
		s.create(ctx, gpuPod("first", 1)...)
		s.unschedulable(ctx, "first")
		s.modprobe(ctx, "-c", "255")
		s.modprobe(ctx, "-c", "0", "-u")
		pod := s.running(ctx, "first")
		s.checkSees(ctx, pod, s.devices(ctx, pod))
	})
}

// rootWithoutDev makes the driver root one that has no dev, with more flags of nvml-sim create. Device nodes are those of this
// machine, so that nothing of a real driver may be there.
func (s *space) rootWithoutDev(ctx context.Context, flags ...string) {
	s.Helper()
	for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/dri"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			s.Skipf("this machine has a %s of its own: %v", path, err)
		}
	}
	s.Cleanup(func() { // after the old driver root has taken the place of this one, which removes the nodes
		hostNodes.Store(false)
		for _, dir := range []string{"/dev/nvidia-caps", "/dev/dri"} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.Error(err)
			}
		}
		if left, err := filepath.Glob("/dev/nvidia*"); err != nil || len(left) > 0 {
			s.Errorf("left in /dev: %v, %v", left, err)
		}
	})
	hostNodes.Store(true)
	s.remakeDriver(ctx, append(flags, "--dev-root", "/")...)
	if _, err := os.Lstat(filepath.Join(env.node.Root(), "dev")); !errors.Is(err, fs.ErrNotExist) {
		s.Fatalf("the driver root has a dev: %v", err)
	}
}

// GKE's driver root has no dev and no C library, its libraries in lib64 and its programs in bin.
func TestTimeSlice_RootWithoutDev(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.rootWithoutDev(ctx, "--flat")
	s.startPlugin(ctx)
	s.create(ctx, claimPod("long", withParameters(shareSpec(timeSliceClass), `"timeSlice":{"interval":"Long"}`))...)
	pod := s.running(ctx, "long")
	if got := s.timeSlices(ctx); len(got) != 1 || !strings.Contains(strings.ToLower(got[0]), "long") {
		t.Errorf("the intervals are %v, want one Long: nvidia-smi runs with the root's own libraries", got)
	}
	s.checkDevices(ctx, pod, s.devices(ctx, pod))
	s.checkLibrary(ctx, pod, "/lib64/libcuda.so.1")
	s.delete(ctx, "long")
	s.eventually(ctx, "the interval to be the default", func(ctx context.Context) (bool, string, error) {
		got := s.timeSlices(ctx)
		return len(got) == 0, fmt.Sprint(got), nil
	})
}

// checkLibrary checks that a pod's container has a library of the driver.
func (s *space) checkLibrary(ctx context.Context, pod *corev1.Pod, path string) {
	s.Helper()
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod.Name, "--", "sh", "-c", "ls "+path)
	s.must(err)
	if diff := cmp.Diff(path, strings.TrimSpace(out)); diff != "" {
		s.Errorf("library of the driver in pod %s (-want +got):\n%s", pod.Name, diff)
	}
}

// In a pod with a user namespace the hooks of CDI specs run as a user who is nobody on the node, and the runtime mounts device
// nodes from the node's own /dev.
func TestPod_UserNamespace(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.needMappedMounts(ctx)
	s.rootWithoutDev(ctx)
	env.node.SetFlags("--cdi-hook-dir", filepath.Join(programsDir, "hooks"))
	t.Cleanup(func() { env.node.SetFlags() }) // before the plugin starts with the old driver
	s.startPlugin(ctx)
	objects := gpuPod("nobody", 1)
	no := false
	podOf(objects).Spec.HostUsers = &no
	s.create(ctx, objects...)
	pod := s.running(ctx, "nobody")
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod.Name, "--", "cat", "/proc/self/uid_map")
	s.must(err)
	if first := strings.Fields(out); len(first) < 3 || first[1] == "0" {
		t.Fatalf("root of the pod is root of the node: %q", out)
	}
	// The library's name is a link that the hook makes.
	s.checkSees(ctx, pod, s.devices(ctx, pod))
}

// needMappedMounts skips the test where the kernel cannot map the IDs of the kubelet's tmpfs volumes, so that pods with user
// namespaces do not start.
func (s *space) needMappedMounts(ctx context.Context) {
	s.Helper()
	n, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	kernel, err := version.ParseGeneric(n.Status.NodeInfo.KernelVersion)
	s.must(err)
	if kernel.LessThan(version.MustParseGeneric("6.3")) {
		s.Skipf("pods with user namespaces need Linux 6.3, and this is %s", n.Status.NodeInfo.KernelVersion)
	}
}
