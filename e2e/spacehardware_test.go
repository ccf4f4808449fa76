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
	"strconv"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/process"
)

// hardware is the simulated hardware of the cluster's node, and what a driver keeps there.
type hardware struct{ *space }

// remakeDriver remakes the driver root of the cluster's node while no plugin runs, and the usual one when the test ends.
func (s hardware) remakeDriver(ctx context.Context, flags ...string) {
	s.Helper()
	s.must(env.node.Stop())
	atEnd(s.T, s.resetDriver)
	s.sim(ctx, append([]string{"create", "--node", model, "--force"}, flags...)...)
}

// sim runs nvml-sim on the driver root of the cluster's node.
func (s hardware) sim(ctx context.Context, args ...string) string {
	s.Helper()
	out, err := env.node.Sim(ctx, args...)
	s.must(err)
	return out
}

// deviceNode is the device node of a device's GPU. Partitions do not publish the minor number, and their GPU need not be
// published whole: that of their GPU is what the kernel module reports.
func (s hardware) deviceNode(d *resourceapi.Device) string {
	s.Helper()
	if minor, ok := d.Attributes["minor"]; ok {
		return "/dev/nvidia" + strconv.FormatInt(*minor.IntValue, 10)
	}
	uuid := *d.Attributes["parentUUID"].StringValue
	files, err := filepath.Glob(filepath.Join(env.node.Root(), "proc/driver/nvidia/gpus/*/information"))
	s.must(err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		s.must(err)
		if _, after, ok := strings.Cut(string(data), "Device Minor:"); ok && strings.Contains(string(data), uuid) {
			return "/dev/nvidia" + strings.Fields(after)[0]
		}
	}
	s.Fatalf("device %s is of a GPU %s that the kernel module does not list", d.Name, uuid)
	return ""
}

// modprobe is what nvidia-modprobe does, run by an admin.
func (s hardware) modprobe(ctx context.Context, args ...string) {
	s.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(programsDir, "nvml-sim"), args...)
	cmd.Args[0], cmd.Env = "nvidia-modprobe", []string{"NVML_SIM_ROOT=" + env.node.Root()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("nvidia-modprobe %v: %v: %s", args, err, out)
	}
}

// rootWithoutDev makes the driver root one that has no dev, with more flags of nvml-sim create. Device nodes are those of this
// machine, so that nothing of a real driver may be there.
func (s hardware) rootWithoutDev(ctx context.Context, flags ...string) {
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

// needMappedMounts skips the test where the kernel cannot map the IDs of the kubelet's tmpfs volumes, so that pods with user
// namespaces do not start.
func (s hardware) needMappedMounts(ctx context.Context) {
	s.Helper()
	n, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	kernel, err := version.ParseGeneric(n.Status.NodeInfo.KernelVersion)
	s.must(err)
	if kernel.LessThan(version.MustParseGeneric("6.3")) {
		s.Skipf("pods with user namespaces need Linux 6.3, and this is %s", n.Status.NodeInfo.KernelVersion)
	}
}

// resetDriver brings back the driver that the other tests expect.
func (s hardware) resetDriver(ctx context.Context) {
	s.must(env.kube.CoreV1().Pods(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(env.client.WaitGone(ctx, s.name, ""))
	s.must(env.node.Stop())
	s.sim(ctx, "create", "--node", model, "--force")
	s.plugin.start(ctx)
}

// fault injects faults for a GPU, which is given by the device that is the whole of it.
func (s hardware) fault(ctx context.Context, device string, args ...string) {
	s.Helper()
	d := find(s.published.devices(ctx, env.cluster.NodeName()), device)
	if d == nil {
		s.Fatalf("device %s is not published", device)
	}
	s.sim(ctx, append([]string{"fault", "--gpu", fmt.Sprint(*d.Attributes["index"].IntValue)}, args...)...)
}

// recoverAfter clears all faults should the test fail before it has done so, so that other tests have all GPUs.
func (s hardware) recoverAfter(ctx context.Context) {
	s.Cleanup(func() {
		if !s.Failed() {
			return
		}
		ctx := context.WithoutCancel(ctx)
		s.sim(ctx, "fault", "--clear")
		if env.node.Running() {
			s.must(env.node.Kill()) // and it forgets what only it knew
		}
		s.plugin.start(ctx)
	})
}

// heal clears the faults of GPUs as after a reset that the driver had wanted.
func (s hardware) heal(ctx context.Context, devices ...string) {
	s.Helper()
	for _, d := range devices {
		s.fault(ctx, d, "--recovery", "1")
	}
	s.eventually(ctx, "the driver's wish for a reset to be known", func(ctx context.Context) (bool, string, error) {
		taints := s.published.unhealthy(ctx)
		for _, d := range devices {
			if !strings.HasPrefix(taints[d], "needs-reset:") {
				return false, fmt.Sprintf("%s has %q", d, taints[d]), nil
			}
		}
		return true, "", nil
	})
	for _, d := range devices {
		s.fault(ctx, d, "--clear")
	}
	s.published.waitUnhealthy(ctx, map[string]string{})
}

// instance is the ID of the GPU instance at a placement of GPU 0.
func (s hardware) instance(ctx context.Context, placement string) string {
	s.Helper()
	all, err := env.node.Partitions(ctx)
	s.must(err)
	i := slices.IndexFunc(all, func(p node.Partition) bool { return p.GPU == "0" && p.Placement == placement })
	if i < 0 {
		s.Fatalf("there is no GPU instance at %s: %v", placement, all)
	}
	return all[i].GPUInstance
}

// partitions are those that exist on the simulated node, as "GPU PROFILE PLACEMENT".
func (s hardware) partitions(ctx context.Context) (found []string) {
	s.Helper()
	all, err := env.node.Partitions(ctx)
	s.must(err)
	for _, p := range all {
		found = append(found, strings.Join([]string{p.GPU, p.Profile, p.Placement}, " "))
	}
	slices.Sort(found)
	return found
}

// waitPartitions waits until just these exist.
func (s hardware) waitPartitions(ctx context.Context, want ...string) {
	s.Helper()
	slices.Sort(want)
	s.eventually(ctx, fmt.Sprintf("the partitions %q and no others", want), func(ctx context.Context) (bool, string, error) {
		got := s.partitions(ctx)
		return slices.Equal(got, want), fmt.Sprintf("%q", got), nil
	})
}

// waitPartitionCount waits until there are so many partitions, and returns them.
func (s hardware) waitPartitionCount(ctx context.Context, want int) (found []string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("%d partitions", want), func(ctx context.Context) (bool, string, error) {
		found = s.partitions(ctx)
		return len(found) == want, fmt.Sprintf("%q", found), nil
	})
	return found
}

// waitNoMPS waits until no process, mount, directory or compute mode of MPS is left.
func (s hardware) waitNoMPS(ctx context.Context) {
	s.Helper()
	s.eventually(ctx, "nothing of MPS to be left", func(ctx context.Context) (bool, string, error) {
		var left []string
		for _, p := range processes() {
			if isMPS(p, "nvidia-cuda-mps") {
				left = append(left, fmt.Sprintf("process %d %s", p.PID, p.Command))
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return false, "", err
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, env.node.Supervisor.Dir()) {
				left = append(left, "mount "+strings.TrimSpace(line))
			}
		}
		directories, err := filepath.Glob(filepath.Join(env.node.Supervisor.Dir(), "*", "gpu-*"))
		if err != nil {
			return false, "", err
		}
		more, err := filepath.Glob(filepath.Join(env.node.Supervisor.Dir(), "gpu-*"))
		if err != nil {
			return false, "", err
		}
		left = append(append(left, directories...), more...)
		shown, err := env.node.Sim(ctx, "show")
		if err != nil {
			return false, "", err
		}
		for line := range strings.Lines(shown) {
			if strings.Contains(line, "EXCLUSIVE") {
				left = append(left, strings.TrimSpace(line))
			}
		}
		return len(left) == 0, strings.Join(left, "\n"), nil
	})
}

// checkDaemon checks that the one MPS control daemon is still this process.
func (s hardware) checkDaemon(before process.Process) {
	s.Helper()
	if after := s.daemon(); after.PID != before.PID {
		s.Errorf("the daemon was process %d and is process %d", before.PID, after.PID)
	}
}

func (s hardware) daemon() process.Process {
	s.Helper()
	for _, p := range processes() {
		if isMPS(p, "nvidia-cuda-mps-control -f") {
			return p
		}
	}
	s.Fatal("no MPS control daemon runs")
	return process.Process{}
}

// checkLogs checks that the file system of an MPS daemon's logs ends what clients can have written there.
func (s hardware) checkLogs(daemon process.Process) {
	s.Helper()
	const limit = 16 << 20
	_, after, _ := strings.Cut("\x00"+daemon.Environment, "\x00CUDA_MPS_LOG_DIRECTORY=")
	dir, _, _ := strings.Cut(after, "\x00")
	var size syscall.Statfs_t
	if err := syscall.Statfs(fmt.Sprintf("/proc/%d/root%s", daemon.PID, dir), &size); err != nil || int64(size.Blocks)*size.Bsize > limit {
		s.Errorf("logs in %q can take %d bytes, %v, want %d at most", dir, int64(size.Blocks)*size.Bsize, err, limit)
	}
}

// timeSlices are the intervals of the node's GPUs that are not the default, as nvidia-smi prints them.
func (s hardware) timeSlices(ctx context.Context) []string {
	s.Helper()
	out := s.sim(ctx, "show")
	var found []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "time slice") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// waitDefaultTimeSlices waits until all intervals are the default.
func (s hardware) waitDefaultTimeSlices(ctx context.Context) {
	s.Helper()
	s.eventually(ctx, "the interval to be the default", func(ctx context.Context) (bool, string, error) {
		got := s.timeSlices(ctx)
		return len(got) == 0, fmt.Sprint(got), nil
	})
}
