// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// capabilities keeps the entries of a GPU's partitions under /proc/driver/nvidia/capabilities in sync with the partitions. Their
// device files are created by nvidia-modprobe and stay forever: the kernel module creates none (nv-caps.c has no device_create). An
// entry exists before the partition is visible and is removed after it, so that any visible partition has its entry.
type capabilities struct {
	root  string
	minor int // of the GPU
}

// capability is an entry: its directory, relative to that of the GPU's partitions, and its minor.
type capability struct {
	dir   string
	minor int
}

// entries lists the entries of all partitions, those of a GPU instance before those of its compute instances.
func (c *capabilities) entries(st *gpuState) []capability {
	var all []capability
	for _, gi := range st.Instances {
		dir := fmt.Sprintf("gi%d", gi.ID)
		all = append(all, capability{dir, capGPUInstance(c.minor, gi.ID)})
		for _, ci := range gi.Compute {
			all = append(all, capability{fmt.Sprintf("%s/ci%d", dir, ci.ID), capComputeInstance(c.minor, gi.ID, ci.ID)})
		}
	}
	return all
}

// missing lists the entries of a that b lacks.
func missing(a, b []capability) []capability {
	has := make(map[int]bool, len(b))
	for _, c := range b {
		has[c.minor] = true
	}
	var m []capability
	for _, c := range a {
		if !has[c.minor] {
			m = append(m, c)
		}
	}
	return m
}

// appear creates the entries of new partitions.
func (c *capabilities) appear(old, next *gpuState) error {
	for _, e := range missing(c.entries(next), c.entries(old)) {
		if err := c.makeEntry(e); err != nil {
			return fmt.Errorf("make capability: %w", err)
		}
	}
	return nil
}

// makeEntry creates an entry, or reuses one that was set aside, which is faster.
func (c *capabilities) makeEntry(e capability) error {
	dir := c.dir(e)
	if os.Rename(c.aside(e), dir) == nil {
		now := time.Now() // a new entry has a new time
		return os.Chtimes(filepath.Join(dir, "access"), now, now)
	}
	if err := makeDirectory(dir); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "access"), []byte(capabilityFile(e.minor)), 0o444)
}

// vanish sets the entries of destroyed partitions aside, compute instances first. Leftovers do no harm.
func (c *capabilities) vanish(old, next *gpuState) {
	gone := missing(c.entries(old), c.entries(next))
	for i := len(gone) - 1; i >= 0; i-- {
		_ = os.Rename(c.dir(gone[i]), c.aside(gone[i]))
	}
}

// dir is the directory of an entry.
func (c *capabilities) dir(e capability) string {
	return filepath.Join(c.root, capabilityDir(c.minor), e.dir)
}

// asideDir contains inactive entries by their minor, which is unique.
const asideDir = stateDir + "/capabilities"

func (c *capabilities) aside(e capability) string {
	return filepath.Join(c.root, asideDir, strconv.Itoa(e.minor))
}
