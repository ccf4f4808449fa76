// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// noticeTimeout bounds the time until a fault shows, such as a lost GPU in the ResourceSlices.
const noticeTimeout = time.Minute

// nodeFaults are those of the node: its power, its driver, its GPUs.
type nodeFaults struct{ *faults }

// reboot is a power failure, and a start in another boot.
func (f nodeFaults) reboot(ctx context.Context, _ Fault) (time.Time, error) {
	if err := cluster.PowerOff(ctx, f.bed.cluster, f.bed.MPSDir); err != nil {
		return time.Time{}, err
	}
	if f.bed.cgroups != "" {
		if err := removeServerGroups(ctx, f.bed.cgroups); err != nil {
			return time.Time{}, err
		}
	}
	if _, err := f.bed.Node.Sim(ctx, "reboot"); err != nil {
		return time.Time{}, err
	}
	from := time.Now()
	return from, cluster.Boot(ctx, f.bed.cluster)
}

// reloadDriver replaces the driver as an admin does: the plugin releases it, and pods that use it end.
func (f nodeFaults) reloadDriver(ctx context.Context, _ Fault) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	if err := f.bed.label(ctx, releaseLabel, "true"); err != nil {
		return time.Time{}, err
	}
	err := workload.Until(ctx, "the driver to be released", func(ctx context.Context) (bool, string, error) {
		_, err := f.bed.Node.Sim(ctx, "driver", "unload")
		return err == nil, fmt.Sprint(err), nil
	})
	if err == nil {
		_, err = f.bed.Node.Sim(ctx, "driver", "load")
	}
	from := time.Now()
	return from, errors.Join(err, f.bed.label(context.WithoutCancel(ctx), releaseLabel, ""))
}

// hang deletes a pod by force whose containers do not end, as their runtime does not answer. What it has is nobody else's until they
// do (history.RuleOwner), though the kubelet has its claims unprepared a minute later.
func (f nodeFaults) hang(ctx context.Context, fault Fault) (time.Time, error) {
	name := fmt.Sprintf("hanging-%05d", fault.Index)
	shape := Shape{Name: "hanging", Claims: []Ask{AskWhole, AskSmall, AskSlice}}
	if err := f.bed.run(ctx, f.pods, shape.manifest(name, ""), podTimeout); err != nil {
		return time.Time{}, err
	}
	shim, err := shimOf(name)
	if err != nil {
		return time.Time{}, err
	}
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		return time.Time{}, fmt.Errorf("stop the runtime of pod %s: %w", name, err)
	}
	err = errors.Join(f.bed.endPod(ctx, f.pods, name, true), f.last(ctx, fault))
	from := time.Now()
	if again := syscall.Kill(shim, syscall.SIGCONT); again != nil {
		err = errors.Join(err, fmt.Errorf("let the runtime of pod %s go on: %w", name, again))
	}
	return from, err
}

// shimOf is the process of containerd's that runs the containers of a pod of a soak.
func shimOf(pod string) (pid int, err error) {
	all, err := process.List()
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		if !strings.Contains("\x00"+p.Environment, "\x00"+podVariable+"="+pod+"\x00") {
			continue
		}
		i := slices.IndexFunc(all, func(parent process.Process) bool { return parent.PID == p.Parent })
		if i >= 0 && strings.HasPrefix(all[i].Name, "containerd-shim") {
			return all[i].PID, nil
		}
	}
	return 0, fmt.Errorf("find the runtime of pod %s: no process of the pod is the child of a containerd-shim", pod)
}

// onGPU runs nvml-sim fault for a GPU.
func (f nodeFaults) onGPU(ctx context.Context, gpu int, args ...string) error {
	_, err := f.bed.Node.Sim(ctx, append([]string{"fault", "--gpu", fmt.Sprint(gpu)}, args...)...)
	return err
}

// waitUnhealthy waits until the devices of a GPU have a taint whose value begins so.
func (f nodeFaults) waitUnhealthy(ctx context.Context, gpu int, value string) error {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	name := f.gpus[gpu]
	return workload.Until(ctx, fmt.Sprintf("GPU %s to be tainted: %s", name, value), func(ctx context.Context) (bool, string, error) {
		devices, err := f.bed.devices(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		return slices.ContainsFunc(devices, func(d string) bool { return strings.HasPrefix(d, name+" "+taintUnhealthy+"="+value) }),
			strings.Join(devices, ", "), nil
	})
}

func (f nodeFaults) loseGPU(ctx context.Context, fault Fault) (time.Time, error) {
	err := f.onGPU(ctx, fault.GPU, "--xid", "79", "--lost")
	if err == nil {
		err = f.waitUnhealthy(ctx, fault.GPU, "")
	}
	if err == nil {
		err = f.last(ctx, fault)
	}
	err = errors.Join(err, f.onGPU(context.WithoutCancel(ctx), fault.GPU, "--clear"))
	return time.Now(), err
}

// reportXID has a GPU report an XID, and the driver ask for a reset, after which all is well.
func (f nodeFaults) reportXID(ctx context.Context, fault Fault) (time.Time, error) {
	err := f.onGPU(ctx, fault.GPU, "--xid", "74")
	if err == nil {
		err = f.waitUnhealthy(ctx, fault.GPU, "xid-74")
	}
	if err == nil {
		err = f.onGPU(ctx, fault.GPU, "--recovery", "1")
	}
	if err == nil {
		err = f.waitUnhealthy(ctx, fault.GPU, "needs-reset")
	}
	err = errors.Join(err, f.onGPU(context.WithoutCancel(ctx), fault.GPU, "--clear"))
	return time.Now(), err
}
