// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// openAtMost bounds opening the device nodes of all GPUs. It takes seconds where the driver initialises a GPU.
const openAtMost = 10 * time.Second

// nodes are open device nodes, by the address of their GPU.
type nodes map[gpu.PCIAddress]*os.File

// openNodes keeps the device nodes of all GPUs open. Without persistence mode the driver tears down a GPU's state when its last file is
// closed, and the next open waits for its initialisation (open-gpu-kernel-modules 595.45.04, kernel-open/nvidia/nv.c, nv_close_device).
// Partitions are restored automatically (the same release, kernel_mig_manager.c:2680-2830).
//
// A GPU without a handle has no state to keep, and an open would initialise it. It fails if a GPU hangs. The caller holds all watchdogs:
// that of such a GPU is among kept, and is released once the call has returned.
func (c *calls) openNodes(ctx context.Context, root string) (opened nodes, kept []*watchdog, err error) {
	if root == "" {
		return nil, nil, nil // a library without a driver root has no device nodes
	}
	over, cancel := context.WithTimeout(context.Background(), openAtMost)
	defer cancel()
	opened = nodes{}
	var all []opening
	gpus := c.inventory.node().GPUs
	for i := range gpus {
		if g := &gpus[i]; c.inventory.isOpen(g.PCI) {
			all = append(all, c.beginOpen(root, g))
		}
	}
	for _, o := range all {
		a, answered := o.wait(over.Done())
		switch {
		case !answered:
			err = errors.Join(err, fmt.Errorf("keep the GPU at %s open: %w", o.pci, gpu.ErrHangs))
			go o.await(ctx, !slices.Contains(kept, o.dog))
			kept = append(kept, o.dog, o.dog.use)
		case a.err == nil:
			opened[o.pci] = a.file
		case errors.Is(a.err, syscall.ENXIO), errors.Is(a.err, syscall.ENODEV), errors.Is(a.err, syscall.EIO), c.inventory.absent(o.pci):
			// without a kernel driver or a GPU behind the node there is no state to keep
		default:
			err = errors.Join(err, fmt.Errorf("keep the GPU at %s open: %w", o.pci, a.err))
		}
	}
	if err != nil {
		opened.close()
	}
	return opened, kept, err
}

// opening is a device node that is being opened, which cannot be cancelled.
type opening struct {
	pci    gpu.PCIAddress
	dog    *watchdog
	answer chan openAnswer
}

type openAnswer struct {
	file *os.File
	err  error
}

func (c *calls) beginOpen(root string, g *gpu.GPU) opening {
	o := opening{g.PCI, c.dogs.of(g.Index), make(chan openAnswer, 1)}
	go func() {
		f, err := c.open(root, g.Minor)
		o.answer <- openAnswer{f, err}
	}()
	return o
}

// wait returns the answer, also one that came just before the time was over.
func (o opening) wait(over <-chan struct{}) (openAnswer, bool) {
	select {
	case a := <-o.answer:
		return a, true
	case <-over:
	}
	select {
	case a := <-o.answer:
		return a, true
	default:
		return openAnswer{}, false
	}
}

// await closes the node of a GPU that hung, and lets its calls go on.
func (o opening) await(ctx context.Context, release bool) {
	if a := <-o.answer; a.err == nil {
		_ = a.file.Close()
	}
	if release {
		o.dog.endAll(ctx)
	}
}

// close closes those that are left.
func (n nodes) close() {
	for _, f := range n {
		_ = f.Close()
	}
}

// openNode opens a GPU's device node in the driver root or, if that has no /dev, on the host.
func openNode(root string, minor int) (*os.File, error) {
	name := fmt.Sprintf("dev/nvidia%d", minor)
	f, err := os.OpenFile(filepath.Join(root, name), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) && filepath.Clean(root) != "/" {
		return os.OpenFile(filepath.Join("/", name), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	}
	return f, err
}
