// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// hostNodes is set while simulated device nodes lie in this machine's own /dev.
var hostNodes atomic.Bool

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
		ctx, s := newSpace(t)
		s.hardware.remakeDriver(ctx, "--no-control-nodes")
		missing(s)
		s.plugin.start(ctx)
		pod := s.pods.run(ctx, gpuPod("first", 1))
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
		s.plugin.waitRecords(ctx, env.node, ownClaim(pod))
	})
	t.Run("made by an admin", func(t *testing.T) {
		ctx, s := newSpace(t)
		s.hardware.remakeDriver(ctx, "--no-control-nodes", "--no-modprobe")
		missing(s)
		s.plugin.start(ctx)
		s.events.wait(ctx, "", env.cluster.NodeName(), "DriverIncomplete", "/dev/nvidiactl is missing", "nvidia-modprobe -c 255")
		s.published.waitTainted(ctx, nodeslices.TaintIncomplete) // until then the slices of the plugin before are there, which have no taint
		s.create(ctx, gpuPod("first", 1)...)
		s.pods.unschedulable(ctx, "first")
		s.hardware.modprobe(ctx, "-c", "255")
		s.hardware.modprobe(ctx, "-c", "0", "-u")
		pod := s.pods.running(ctx, "first")
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
	})
}

// GKE's driver root has no dev and no C library, its libraries in lib64 and its programs in bin.
func TestTimeSlice_RootWithoutDev(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.rootWithoutDev(ctx, "--flat")
	s.plugin.start(ctx)
	pod := s.pods.run(ctx, claimPod("long", withParameters(shareSpec(timeSliceClass), `"timeSlice":{"interval":"Long"}`)))
	if got := s.hardware.timeSlices(ctx); len(got) != 1 || !strings.Contains(strings.ToLower(got[0]), "long") {
		t.Errorf("the intervals are %v, want one Long: nvidia-smi runs with the root's own libraries", got)
	}
	s.pods.checkDevices(ctx, pod, s.pods.devices(ctx, pod))
	s.pods.checkLibrary(ctx, pod, "/lib64/libcuda.so.1")
	s.pods.delete(ctx, "long")
	s.hardware.waitDefaultTimeSlices(ctx)
}

// In a pod with a user namespace the hooks of CDI specs run as a user who is nobody on the node, and the runtime mounts device
// nodes from the node's own /dev.
func TestPod_UserNamespace(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.needMappedMounts(ctx)
	s.hardware.rootWithoutDev(ctx)
	env.node.SetFlags("--cdi-hook-dir", filepath.Join(programsDir, "hooks"))
	t.Cleanup(func() { env.node.SetFlags() }) // before the plugin starts with the old driver
	s.plugin.start(ctx)
	no := false
	objects := slices.Concat(gpuPod("nobody", 1), partitionPod("part", smallClass))
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			pod.Spec.HostUsers = &no
		}
	}
	s.create(ctx, objects...)
	for _, name := range []string{"nobody", "part"} {
		pod := s.pods.running(ctx, name)
		out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod.Name, "--", "cat", "/proc/self/uid_map")
		s.must(err)
		if first := strings.Fields(out); len(first) < 3 || first[1] == "0" {
			t.Fatalf("root of %s is root of the node: %q", name, out)
		}
		// The library's name is a link that the hook makes, and the node of a partition's capability is there only for such pods.
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
	}
}
