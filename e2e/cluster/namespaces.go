// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/e2e/process"
)

// nodeInit is the first process of a node that has namespaces of its own. They last as long as it does, and all that runs
// in them ends with it.
const nodeInit Component = "init"

// namespaceFlags are the namespaces that each of several nodes has of its own. Control groups are shared: containers have
// unique names there.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// hidden are directories that programs of a node write to and whose path cannot be chosen, or is the same on all nodes:
// the device manager's socket, results of network plugins, links to pod logs, the hook programs of a driver.
var hidden = []string{"/var/lib", "/var/log"}

// Boot makes the namespaces of a node, in which nothing runs yet. The files of the node are as they were. It does nothing
// for a node that is this machine.
func (n Node) Boot(ctx context.Context) error {
	if n.machine.number == 0 {
		return nil
	}
	// The shell takes note of the end of processes that lost their parent, as an init has to.
	cmd := exec.Command(n.cluster.state.Host.Busybox, "sh", "-c", "while :; do sleep 3600; done") //nolint:noctx // it outlives this program
	cmd.Dir, cmd.Env = "/", daemonEnvironment(n.cluster.layout, n.cluster.state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: namespaceFlags}
	program, err := process.Start(cmd, n.layout.logFile(nodeInit))
	if err != nil {
		return fmt.Errorf("make the namespaces of node %s: %w", n.Name(), err)
	}
	if _, err := recordDaemon(n.layout, nodeInit, program.PID()); err != nil {
		return err
	}
	if err := n.Inside(func() error { return n.mount(ctx) }); err != nil {
		return fmt.Errorf("set up the mounts of node %s: %w", n.Name(), err)
	}
	if err := n.connect(ctx, program.PID()); err != nil {
		return fmt.Errorf("connect node %s: %w", n.Name(), err)
	}
	return nil
}

// Kill ends all processes of a node at once, containers too: nothing is cleaned up.
func (n Node) Kill(ctx context.Context) error {
	if n.machine.number == 0 {
		return errors.New("kill the only node: it is this machine")
	}
	return n.Component(nodeInit).Stop(ctx, syscall.SIGKILL)
}

// Inside runs a function in the namespaces of the node, with the commands that it starts. Processes that this program looks
// at itself are those of its own namespace nevertheless.
func (n Node) Inside(f func() error) error {
	if n.machine.number == 0 {
		return f()
	}
	d, err := findDaemon(n.layout, nodeInit)
	if err != nil {
		return err
	}
	if !d.process.alive() {
		return fmt.Errorf("enter node %s: it was killed", n.Name())
	}
	return onThread(func() error {
		if err := enter(d.process.pid); err != nil {
			return fmt.Errorf("enter node %s: %w", n.Name(), err)
		}
		return f()
	})
}

// onThread runs a function on a thread that nothing else runs on, before or after.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() { // ends with f
		// Not unlocked, so the thread ends with this goroutine.
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			result <- f()
			return
		}
		// What /proc/self shows is of this thread, and it does not end: another one has to do it.
		result <- onThread(f)
		runtime.UnlockOSThread()
	}()
	return <-result
}

// enter moves the calling thread into the namespaces of a process; into that of processes, only what it starts.
func enter(pid int) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(handle) }()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the working directory of other threads: %w", err)
	}
	if err := unix.Setns(handle, namespaceFlags); err != nil {
		return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	return nil
}

// mount gives a node its own files: below the cluster's directory, and where programs write outside of it. It runs inside.
func (n Node) mount(ctx context.Context) error {
	dir, programs := n.cluster.layout.dir, n.cluster.state.BinDir
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	// Both may lie below what is hidden next.
	var kept []*os.File
	for _, source := range []string{n.layout.dir, programs} {
		f, err := os.OpenFile(source, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return fmt.Errorf("open a directory of the node: %w", err)
		}
		defer func() { _ = f.Close() }()
		kept = append(kept, f)
	}
	for _, path := range hidden {
		if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", path, err)
		}
	}
	for i, target := range []string{dir, programs} {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("create a mount point: %w", err)
		}
		from := filepath.Join("/proc/self/fd", strconv.Itoa(int(kept[i].Fd())))
		if err := unix.Mount(from, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s on %s: %w", kept[i].Name(), target, err)
		}
	}
	// It shows the processes of the namespace that the one who mounts it is in, which a thread cannot change.
	mount := exec.CommandContext(ctx, n.cluster.state.Host.Busybox, "mount", "-t", "proc", "proc", "/proc")
	if output, err := mount.CombinedOutput(); err != nil {
		return fmt.Errorf("mount /proc: %w: %s", err, output)
	}
	// As on a node that systemd started, mounts pass between the node and its containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mounts with containers: %w", err)
	}
	return unix.Sethostname([]byte(n.Name()))
}
