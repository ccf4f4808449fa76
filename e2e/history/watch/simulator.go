// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// Simulator is the simulated hardware of a node under a root.
type Simulator struct {
	Root string
	// Program is what the plugin's file is called: what it has others do is its own doing.
	Program string
	// Proc is the node's /proc; empty for that of this machine.
	Proc string
}

// lookAgain is how often the journal is looked at. Events have the time at which they were written.
const lookAgain = 50 * time.Millisecond

// Run reports until ctx ends, and then what was written until then. A node that is created anew begins another journal.
func (s Simulator) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	var j *journalReader
	defer func() {
		if j != nil {
			_ = j.file.Close()
		}
	}()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		ended := ctx.Err() != nil
		if j != nil {
			if err := j.read(s, r); err != nil {
				return describe("changes of the simulated hardware", err)
			}
		}
		if ended {
			return nil
		}
		if j == nil || !j.current() {
			if next, err := s.begin(r, j); err == nil { // else again
				j = next
				ready()
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// begin creates the journal, and reports what is there before its first entry.
func (s Simulator) begin(r *history.Recorder, old *journalReader) (*journalReader, error) {
	path := sim.JournalFile(s.Root)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekEnd); err != nil { // past an earlier recording
		return nil, errors.Join(err, file.Close())
	}
	at := time.Duration(0)
	if old != nil {
		at = r.Clock().Now()
	}
	if err := s.snapshot(r, at); err != nil { // the node is being created
		return nil, errors.Join(err, file.Close())
	}
	if old != nil {
		r.AddAt(at, history.Gap{Source: history.SourceHardware, From: old.last})
		_ = old.file.Close()
	}
	return &journalReader{file: file, path: path}, nil
}

// snapshot reports the partitions that are there; nobody knows who created them.
func (s Simulator) snapshot(r *history.Recorder, at time.Duration) error {
	node, err := sim.Open(s.Root)
	if err != nil {
		return err
	}
	st, err := node.Status()
	if err != nil {
		return err
	}
	for _, g := range st.GPUs {
		address, err := gpu.ParsePCIAddress(g.PCI)
		if err != nil {
			return err
		}
		for _, i := range g.Instances {
			r.AddAt(at, history.Hardware{
				Change: history.PartitionCreated, GPU: address.DeviceName(),
				Partition: &history.Partition{Profile: i.ProfileID, Start: i.Start, Serial: i.Serial},
			})
		}
	}
	return nil
}

// journalReader reads a journal as it is written.
type journalReader struct {
	path string
	file *os.File
	// rest is the beginning of a line.
	rest []byte
	last time.Duration
}

// current reports whether the file is still the node's journal.
func (j *journalReader) current() bool {
	have, err1 := j.file.Stat()
	now, err2 := os.Stat(j.path)
	return err1 == nil && err2 == nil && os.SameFile(have, now)
}

// read reports what was written since.
func (j *journalReader) read(s Simulator, r *history.Recorder) error {
	data, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	data = append(j.rest, data...)
	end := bytes.LastIndexByte(data, '\n') + 1
	j.rest = bytes.Clone(data[end:])
	j.last = r.Clock().Now()
	for line := range bytes.Lines(data[:end]) {
		var e sim.JournalEntry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read %s: %w: %s", filepath.Base(j.path), err, line)
		}
		r.AddAt(r.Clock().At(time.Duration(e.Monotonic)), s.fact(e))
	}
	return nil
}

// fact is what an entry says.
func (s Simulator) fact(e sim.JournalEntry) history.Hardware {
	fact := history.Hardware{
		Change: history.Change(e.Change), GPU: e.GPU, PID: e.PID, Program: e.Name, Value: e.Value, By: e.By,
	}
	if s.Program != "" && e.Parent == s.Program {
		fact.By = s.Program
	}
	if fact.Change == history.ServedStarted { // the server itself may not see /proc: it can run in the driver's root
		fact.Pod = podOf(cmp.Or(s.Proc, "/proc"), e.PID)
	}
	if e.Serial != 0 {
		fact.Partition = &history.Partition{Profile: e.Profile, Start: e.Start, Serial: e.Serial}
	}
	return fact
}
