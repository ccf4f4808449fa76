// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// capabilities keeps the entries of a GPU's partitions under /proc/driver/nvidia/capabilities in step with the partitions. Their
// device files are made by nvidia-modprobe and stay for ever: the kernel module makes none (nv-caps.c has no device_create). An entry is
// there before the partition can be found and goes after it, so that whoever finds a partition finds its entry.
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

// missing lists the entries of a that b has not.
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

// appear makes the entries of new partitions.
func (c *capabilities) appear(old, next *gpuState) error {
	for _, e := range missing(c.entries(next), c.entries(old)) {
		if err := c.makeEntry(e); err != nil {
			return fmt.Errorf("make capability: %w", err)
		}
	}
	return nil
}

// makeEntry makes an entry, or takes back one that was put aside, which is faster.
func (c *capabilities) makeEntry(e capability) error {
	dir := c.dir(e)
	if os.Rename(c.aside(e), dir) == nil {
		now := time.Now() // it is another entry, and shows it
		return os.Chtimes(filepath.Join(dir, "access"), now, now)
	}
	if err := makeDirectory(dir); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "access"), []byte(capabilityFile(e.minor)), 0o444)
}

// vanish puts the entries of partitions that are gone aside, compute instances first. What cannot be moved is in
// nobody's way.
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

// asideDir is where entries lie that are not active, by their minor, which is theirs alone.
const asideDir = stateDir + "/capabilities"

func (c *capabilities) aside(e capability) string {
	return filepath.Join(c.root, asideDir, strconv.Itoa(e.minor))
}
