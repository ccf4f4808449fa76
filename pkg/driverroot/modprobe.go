// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// modprobeName is the driver's own program that loads its kernel modules and makes its device nodes.
const modprobeName = "nvidia-modprobe"

// modprobeTimeout bounds a run of nvidia-modprobe, which may load a kernel module.
const modprobeTimeout = 20 * time.Second

// controlMinor is the number by which nvidia-modprobe knows /dev/nvidiactl (nvidia-modprobe-utils.h, NV_CTL_DEVICE_NUM).
const controlMinor = 255

// maxMinors is how many nodes nvidia-modprobe makes in one run (nvidia-modprobe.c, main).
const maxMinors = 64

// Nodes are device nodes that nvidia-modprobe is to make. Those that are there stay as they are.
type Nodes struct {
	Control bool  // /dev/nvidiactl
	UVM     bool  // /dev/nvidia-uvm and /dev/nvidia-uvm-tools
	GPUs    []int // N of /dev/nvidiaN
}

// commands are the arguments of each run of nvidia-modprobe: with -u it makes the nodes of nvidia-uvm and no others.
func (n Nodes) commands() [][]string {
	var all [][]string
	var minors []int
	if n.Control {
		minors = append(minors, controlMinor)
	}
	minors = append(minors, n.GPUs...)
	if minors = minors[:min(len(minors), maxMinors)]; len(minors) > 0 {
		var args []string
		for _, minor := range minors {
			args = append(args, "-c", strconv.Itoa(minor))
		}
		all = append(all, args)
	}
	if n.UVM {
		all = append(all, []string{"-c", "0", "-u"})
	}
	return all
}

// MakeNodes has the driver's own nvidia-modprobe make device nodes on the host. Nothing but CUDA programs does it there:
// the kernel does not make nodes for the driver (nvidia-container-toolkit#1979).
//
// A process that sees the host's files elsewhere, such as one in a container, runs the program in the mount namespace of
// the host's first process: the nodes are to be in the host's /dev, and modules are loaded with the host's options.
// procfs is the host's /proc.
func (r Root) MakeNodes(ctx context.Context, procfs string, nodes Nodes) error {
	if filepath.Clean(r.Here) == filepath.Clean(r.Host) {
		return r.makeNodes(ctx, nodes)
	}
	onHost := Root{Host: r.Host, Here: r.Host}
	return inMountNamespace(filepath.Join(procfs, "1/ns/mnt"), func() error { return onHost.makeNodes(ctx, nodes) })
}

func (r Root) makeNodes(ctx context.Context, nodes Nodes) error {
	program, found := r.Find(modprobeName)
	if !found {
		return fmt.Errorf("run %s: there is none below %s: %w", modprobeName, r.Here, os.ErrNotExist)
	}
	ctx, cancel := context.WithTimeout(ctx, modprobeTimeout)
	defer cancel()
	var errs []error
	for _, args := range nodes.commands() {
		if output, err := r.Run(ctx, program, args...); err != nil {
			errs = append(errs, fmt.Errorf("run %s %v: %w: %s", program, args, err, OneLine(output)))
		}
	}
	return errors.Join(errs...)
}

// inMountNamespace runs do on a thread that is in another mount namespace. The thread is of no use for anything else
// afterwards and ends with the goroutine.
func inMountNamespace(path string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open(path)
			if err != nil {
				return fmt.Errorf("enter the host's mount namespace: %w", err)
			}
			defer func() { _ = ns.Close() }()
			if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2) refuses threads that share their root
				return fmt.Errorf("enter the host's mount namespace: %w", err)
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("enter the host's mount namespace: %w", err)
			}
			return do()
		}()
	}()
	return <-done
}
