// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func readJournal(t *testing.T, root string) []JournalEntry {
	t.Helper()
	data, err := os.ReadFile(JournalFile(root))
	must(t, err)
	var entries []JournalEntry
	for line := range bytes.Lines(data) {
		var e JournalEntry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		entries = append(entries, e)
	}
	return entries
}

func TestJournal(t *testing.T) {
	root := t.TempDir()
	node, err := Create(root, "hgx-h100", WithoutDeviceNodes(), WithForce())
	must(t, err)
	must(t, node.Init())
	t.Setenv(programVariable, "tester")
	mig := node.Device(0).MIG()
	must := func(err error) {
		t.Helper()
		must(t, err)
	}
	must(node.Device(2).Modes().SetComputeMode(ModeExclusiveProcess)) // before there is a journal
	must(os.WriteFile(JournalFile(root), nil, 0o600))
	_, err = mig.SetMIGMode(true)
	must(err)
	first, err := mig.CreateGPUInstance(19)
	must(err)
	second, err := mig.CreateGPUInstance(9)
	must(err)
	must(first.Destroy())
	must(node.Clients().Add(1, Client{PID: 12, Name: "python", GPUInstance: -1, ComputeInstance: -1}))
	must(node.Clients().Remove(1, 12))
	whole, part := Served{PID: 13, Name: "cuda", GPUInstance: -1}, Served{PID: 14, Name: "cuda", GPUInstance: second.ID()}
	must(node.Clients().BeginServed(1, whole))
	must(node.Clients().EndServed(1, whole))
	must(node.Clients().BeginServed(0, part))
	if err := node.Clients().BeginServed(0, Served{PID: 15, GPUInstance: second.ID() + 1}); err == nil {
		t.Error("a server serves a program on a partition that does not exist")
	}
	must(node.Device(2).Modes().SetComputeMode(ModeDefault))
	must(node.Hardware().Lose(3))
	must(node.Shutdown())
	must(node.Driver().Reboot())

	got := readJournal(t, root)
	if !slices.IsSortedFunc(got, func(a, b JournalEntry) int { return int(a.Monotonic - b.Monotonic) }) || got[0].Monotonic == 0 {
		t.Errorf("times: %+v", got)
	}
	if got[0].Parent == "" {
		t.Error("the entries do not name the program that started this one")
	}
	names := deviceNames(node.spec)
	want := []JournalEntry{
		{Change: JournalMIGMode, GPU: names[0], Value: "true"},
		{Change: JournalCreated, GPU: names[0], Profile: 19, Start: got[1].Start, Serial: 1},
		{Change: JournalCreated, GPU: names[0], Profile: 9, Start: got[2].Start, Serial: 2},
		{Change: JournalDestroyed, GPU: names[0], Profile: 19, Start: got[1].Start, Serial: 1},
		{Change: JournalClient, GPU: names[1], PID: 12, Name: "python"},
		{Change: JournalClientEnded, GPU: names[1], PID: 12, Name: "python"},
		{Change: JournalServed, GPU: names[1], PID: 13, Name: "cuda"},
		{Change: JournalServedEnded, GPU: names[1], PID: 13, Name: "cuda"},
		{Change: JournalServed, GPU: names[0], PID: 14, Name: "cuda", Profile: 9, Start: got[2].Start, Serial: 2},
		{Change: JournalComputeMode, GPU: names[2], Value: "DEFAULT"},
		{Change: JournalLost, GPU: names[3]},
		{Change: JournalDestroyed, GPU: names[0], Profile: 9, Start: got[2].Start, Serial: 2},
		{Change: JournalMIGMode, GPU: names[0], Value: "false"},
		{Change: JournalBooted, Value: bootID(node.spec, 2)},
		{Change: JournalBack, GPU: names[3]},
	}
	for i := range want {
		want[i].By = "tester"
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(JournalEntry{}, "Monotonic", "Parent"), cmpopts.IgnoreUnexported(JournalEntry{})); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// Nothing is changed that the journal does not get.
func TestJournal_NotWritable(t *testing.T) {
	root := t.TempDir()
	node, err := Create(root, "hgx-h100", WithoutDeviceNodes(), WithForce())
	must(t, err)
	must(t, os.Mkdir(JournalFile(root), 0o700))
	if err := node.Hardware().Lose(0); err == nil {
		t.Error("a GPU was lost, and the journal could not be written")
	}
	if st, err := node.Status(); err != nil || st.GPUs[0].Lost {
		t.Errorf("status: %v, lost %t", err, st.GPUs[0].Lost)
	}
}
