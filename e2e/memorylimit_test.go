// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// A driver of release 615 limits memory by cgroup v2. The container runtime's part is done by hand here, so that it does
// not depend on which cgroups this machine has.
func TestTimeSlice_MemoryLimit(t *testing.T) {
	ctx, s := newSpace(t)
	groups := t.TempDir()
	s.must(syscall.Mount("none", groups, "cgroup2", 0, ""))
	t.Cleanup(func() { s.must(syscall.Unmount(groups, 0)) })
	n := s.newPlainNode(ctx, nil, "--cgroup-root", groups)
	n.sim(ctx, "create", "--node", "l40s", "--driver-version", "615.10.01")
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 4)
	shared := n.deviceNames(ctx)[0] + "-timeslice"
	device := find(s.published.devices(ctx, n.name), shared)
	if device == nil || *device.Attributes["memoryEnforcement"].StringValue != "cgroup" {
		t.Fatalf("device %s is %+v, want memoryEnforcement cgroup", shared, device)
	}
	claim, err := env.client.Allocate(ctx, s.name, "share", workload.OneShare(n.name, shared, map[string]int64{gpu.CapacityShares: 1, gpu.CapacityMemory: 6 << 30}))
	s.must(err)
	_, err = n.Prepare(ctx, claim)
	s.must(err)
	spec := s.plugin.claimSpec(filepath.Join(filepath.Dir(n.Root()), "cdi"), claim.Uid)
	hooks := spec.Devices[0].ContainerEdits.Hooks
	if len(hooks) != 1 || hooks[0].HookName != "createRuntime" {
		t.Fatalf("the claim's spec has hooks %+v, want one at createRuntime", hooks)
	}
	group := filepath.Join(groups, "cleave-e2e-container")
	s.must(os.Mkdir(group, 0o755))
	t.Cleanup(func() { s.must(os.Remove(group)) })
	var shown string
	s.must(runHook(ctx, groups, group, hooks[0], func() (err error) {
		shown, err = n.Sim(ctx, "show") // which hides limits of cgroups that are not there
		return err
	}))
	if want := fmt.Sprintf("soft 0, hard %d of /sys/fs/cgroup/cleave-e2e-container", 6<<30); !strings.Contains(shown, want) {
		t.Errorf("the node shows\n%s\nwant %q", shown, want)
	}
	s.must(n.Unprepare(ctx, claim))
}

// runHook runs a hook as a container runtime does for a container in a cgroup: on a host whose hierarchy is the one that
// is mounted elsewhere here. It looks at the outcome on that host.
func runHook(ctx context.Context, groups, group string, hook *cdispecs.Hook, look func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		result <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
				return fmt.Errorf("create a mount namespace: %w", err)
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("make mounts private: %w", err)
			}
			if err := syscall.Mount(groups, "/sys/fs/cgroup", "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount the hierarchy: %w", err)
			}
			container := exec.CommandContext(ctx, "sleep", "infinity")
			if err := container.Start(); err != nil {
				return fmt.Errorf("start a container: %w", err)
			}
			defer func() { _ = container.Process.Kill(); _ = container.Wait() }()
			pid := strconv.Itoa(container.Process.Pid)
			if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0o644); err != nil {
				return fmt.Errorf("put the container into its cgroup: %w", err)
			}
			cmd := exec.CommandContext(ctx, hook.Path, hook.Args[1:]...)
			cmd.Env = append(os.Environ(), hook.Env...)
			cmd.Stdin = strings.NewReader(`{"ociVersion":"1.2.0","id":"c","status":"created","pid":` + pid + `,"bundle":"/"}`)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("run %s: %w: %s", hook.Path, err, out)
			}
			return look()
		}()
	}()
	return <-result
}
