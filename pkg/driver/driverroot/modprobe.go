// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// modprobeName is the driver's program that loads its kernel modules and creates its device nodes.
const modprobeName = "nvidia-modprobe"

// modprobeTimeout bounds a run of nvidia-modprobe, which may load a kernel module.
const modprobeTimeout = 20 * time.Second

// controlMinor is nvidia-modprobe's number for /dev/nvidiactl (nvidia-modprobe-utils.h, NV_CTL_DEVICE_NUM).
const controlMinor = 255

// maxMinors is how many nodes nvidia-modprobe creates in one run (nvidia-modprobe.c, main).
const maxMinors = 64

// maxCapabilities is how many capability nodes it creates in one run (nvidia-modprobe.c, main).
const maxCapabilities = 256

// Nodes are device nodes that nvidia-modprobe should create. Existing ones stay unchanged.
type Nodes struct {
	Control bool  // /dev/nvidiactl
	UVM     bool  // /dev/nvidia-uvm and /dev/nvidia-uvm-tools
	GPUs    []int // N of /dev/nvidiaN
	// Capabilities are files below /proc such as "driver/nvidia/capabilities/gpu0/mig/gi1/access", whose nodes are those of
	// /dev/nvidia-caps.
	Capabilities []string
}

// commands are the arguments of each run of nvidia-modprobe: with -u it creates only the nodes of nvidia-uvm.
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
	if files := n.Capabilities[:min(len(n.Capabilities), maxCapabilities)]; len(files) > 0 {
		var args []string
		for _, file := range files {
			args = append(args, "-f", path.Join("/proc", file))
		}
		all = append(all, args)
	}
	return all
}

// CreateNodes creates device nodes on the host with the driver's nvidia-modprobe. Otherwise only CUDA programs on the host
// create them: the kernel does not (nvidia-container-toolkit#1979).
//
// A process that sees the host's files elsewhere, such as one in a container, runs the program in the mount namespace of
// the host's first process: the nodes belong in the host's /dev, and modules are loaded with the host's options. procfs is
// the host's /proc.
func (r Root) CreateNodes(ctx context.Context, procfs string, nodes Nodes) error {
	if filepath.Clean(r.Here) == filepath.Clean(r.Host) {
		return r.createNodes(ctx, nodes)
	}
	onHost := Root{Host: r.Host, Here: r.Host}
	return inMountNamespace(filepath.Join(procfs, "1/ns/mnt"), func() error { return onHost.createNodes(ctx, nodes) })
}

func (r Root) createNodes(ctx context.Context, nodes Nodes) error {
	program, found := r.Find(modprobeName)
	if !found {
		return fmt.Errorf("find %s below %s: %w", modprobeName, r.Here, os.ErrNotExist)
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

// inMountNamespace runs do on a thread in another mount namespace. The thread is never unlocked, so it ends with the
// goroutine.
func inMountNamespace(path string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := enterMountNamespace(path); err != nil {
			done <- fmt.Errorf("enter the host's mount namespace: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

func enterMountNamespace(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // setns(2) refuses threads that share their root
		return err
	}
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS)
}
