// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// The changes in a journal.
const (
	JournalCreated     = "partition-created"
	JournalDestroyed   = "partition-destroyed"
	JournalMIGMode     = "mig-mode"
	JournalComputeMode = "compute-mode"
	JournalClient      = "client-started"
	JournalClientEnded = "client-ended"
	JournalServed      = "mps-client-started"
	JournalServedEnded = "mps-client-ended"
	JournalLost        = "gpu-lost"
	JournalBack        = "gpu-back"
	JournalUnloaded    = "driver-unloaded"
	JournalLoaded      = "driver-loaded"
	JournalBooted      = "booted"
)

// JournalEntry is a change of the hardware of a node. The entry is appended in one write before the change is visible: a killed
// process leaves either nothing, or an entry for a change that it did not make; the next created instance then has the serial of
// one that never existed.
type JournalEntry struct {
	// Monotonic is the time in nanoseconds of the machine's monotonic clock, which all processes share.
	Monotonic int64  `json:"monotonic"`
	Change    string `json:"change"`
	// GPU is the name of the whole-GPU device, see gpu.PCIAddress.DeviceName; empty for the node.
	GPU string `json:"gpu,omitempty"`
	// Profile, Start and Serial of a GPU instance. The serial counts all instances ever created on the GPU.
	Profile int    `json:"profile,omitempty"`
	Start   int    `json:"start,omitempty"`
	Serial  uint64 `json:"serial,omitempty"`
	// PID and Name of a client. The PID is in the namespace of the writer.
	PID  int    `json:"pid,omitempty"`
	Name string `json:"name,omitempty"`
	// Value of a mode, or the boot ID.
	Value string `json:"value,omitempty"`
	// By is the program that makes the change, and Parent the one that started it: file names, empty if unknown, or if a client has
	// ended by itself, which others only notice.
	By     string `json:"by,omitempty"`
	Parent string `json:"parent,omitempty"`

	noticed bool
}

// JournalFile is the journal of the node under a root. A node has one once the file is created, until the node is recreated.
func JournalFile(root string) string { return filepath.Join(root, stateDir, "journal") }

// journal appends changes of a node to its journal, if it has one.
type journal struct {
	path string
	// by and parent identify this process.
	identify   sync.Once
	by, parent string
}

// programVariable replaces the program's file name in journals: tests run many components in one program.
const programVariable = "NVML_SIM_PROGRAM"

func (j *journal) who() (by, parent string) {
	j.identify.Do(func() {
		j.parent = program("/proc/" + strconv.Itoa(os.Getppid()) + "/exe")
		if j.by = os.Getenv(programVariable); j.by == "" {
			j.by = program("/proc/self/exe")
		}
	})
	return j.by, j.parent
}

func program(link string) string {
	path, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(path), " (deleted)")
}

// append writes entries, if the node has a journal.
func (j *journal) append(entries []JournalEntry) error {
	if len(entries) == 0 {
		return nil
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	defer f.Close() // write errors are reported above
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	var lines bytes.Buffer
	for _, e := range entries {
		e.Monotonic = now.Nano()
		if !e.noticed {
			e.By, e.Parent = j.who()
		}
		data, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("write the journal: %w", err)
		}
		lines.Write(append(data, '\n'))
	}
	if _, err := f.Write(lines.Bytes()); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

// gpuChanges are the changes between two states of a GPU, ends first.
func gpuChanges(device string, old, next *gpuState, alive func(Client) bool) []JournalEntry {
	var changes []JournalEntry
	for _, c := range old.Clients {
		if !slices.ContainsFunc(next.Clients, sameClient(c)) {
			changes = append(changes, JournalEntry{Change: JournalClientEnded, GPU: device, PID: c.PID, Name: c.Name, noticed: !alive(c)})
		}
	}
	instance := func(change string, gi gpuInstance) JournalEntry {
		return JournalEntry{Change: change, GPU: device, Profile: gi.Profile, Start: gi.Start, Serial: gi.Serial}
	}
	for _, gi := range old.Instances {
		if !slices.ContainsFunc(next.Instances, sameInstance(gi)) {
			changes = append(changes, instance(JournalDestroyed, gi))
		}
	}
	if old.MIG != next.MIG {
		changes = append(changes, JournalEntry{Change: JournalMIGMode, GPU: device, Value: strconv.FormatBool(next.MIG)})
	}
	if old.ComputeMode != next.ComputeMode {
		changes = append(changes, JournalEntry{Change: JournalComputeMode, GPU: device, Value: ComputeModeName(next.ComputeMode)})
	}
	for _, gi := range next.Instances {
		if !slices.ContainsFunc(old.Instances, sameInstance(gi)) {
			changes = append(changes, instance(JournalCreated, gi))
		}
	}
	for _, c := range next.Clients {
		if !slices.ContainsFunc(old.Clients, sameClient(c)) {
			changes = append(changes, JournalEntry{Change: JournalClient, GPU: device, PID: c.PID, Name: c.Name})
		}
	}
	return changes
}

func sameClient(c Client) func(Client) bool {
	return func(o Client) bool { return o.PID == c.PID && o.Name == c.Name }
}

func sameInstance(gi gpuInstance) func(gpuInstance) bool {
	return func(o gpuInstance) bool { return o.Serial == gi.Serial }
}

// nodeChanges are the changes between two states of a node.
func nodeChanges(devices []string, old, next *nodeState) []JournalEntry {
	var changes []JournalEntry
	if old.BootID != next.BootID {
		changes = append(changes, JournalEntry{Change: JournalBooted, Value: next.BootID})
	}
	if old.Unloaded != next.Unloaded {
		change := JournalLoaded
		if next.Unloaded {
			change = JournalUnloaded
		}
		changes = append(changes, JournalEntry{Change: change})
	}
	gone := func(s *nodeState, i int) bool { return slices.Contains(s.Lost, i) || slices.Contains(s.Absent, i) }
	for i, device := range devices {
		switch was, is := gone(old, i), gone(next, i); {
		case was && !is:
			changes = append(changes, JournalEntry{Change: JournalBack, GPU: device})
		case !was && is:
			changes = append(changes, JournalEntry{Change: JournalLost, GPU: device})
		}
	}
	return changes
}

// deviceNames are the names of a node's whole-GPU devices.
func deviceNames(s *spec) []string {
	names := make([]string, len(s.GPUs))
	for i := range s.GPUs {
		if a, err := gpu.ParsePCIAddress(s.GPUs[i].bdf()); err == nil {
			names[i] = a.DeviceName()
		}
	}
	return names
}

// keep makes changes of a node's state go to its journal.
func (j *journal) keep(n *Node) {
	n.journal = j
	devices := deviceNames(n.spec)
	n.state.before = func(old, next *nodeState) error { return j.append(nodeChanges(devices, old, next)) }
	for i, c := range n.gpus {
		before := c.before
		c.before = func(old, next *gpuState) error {
			if before != nil {
				if err := before(old, next); err != nil {
					return err
				}
			}
			return j.append(gpuChanges(devices[i], old, next, n.clients.alive))
		}
	}
}
