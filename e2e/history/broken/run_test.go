// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/history/broken/protocol"
	"github.com/cleave-dra/cleave/e2e/history/watch"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

const (
	// rounds is how often something happens in a history by chance.
	rounds = 30
	// stepsOfPrepare is how many steps it takes to prepare a partition, at least.
	stepsOfPrepare = 8
)

// place is a device that can be allocated, with the memory slices that it takes.
type place struct {
	name           string
	index          int // of its GPU
	profile, start int // of a partition; profile 0 for the whole GPU
	size           int
}

func (p place) overlaps(o place) bool {
	return p.index == o.index && p.start < o.start+o.size && o.start < p.start+p.size
}

// claim is a claim that is allocated to the node.
type claim struct {
	uid      string
	place    place
	prepared bool
	restarts int
}

// world is all but the plugin: the kubelet, the API server, an administrator and the power.
type world struct {
	*testing.T
	dir, program, lacks string
	random              *rand.Rand
	node                *sim.Node
	recorder            *history.Recorder
	places              []place
	claims              []*claim
	next, calls         int
	// forced is what happens during the next call in place of chance.
	forced *protocol.Request
	// lost are places that the plugin did not give back.
	lost []place

	plugin  *exec.Cmd
	asks    io.WriteCloser
	answers *bufio.Scanner
}

// run records the history of a seed.
func run(t *testing.T, program, lacks string, seed uint64) history.History {
	t.Helper()
	w := &world{T: t, dir: t.TempDir(), program: program, lacks: lacks, random: rand.New(rand.NewPCG(seed, 0))}
	var err error
	w.node, err = sim.Create(filepath.Join(w.dir, "node"), "hgx-h100", sim.WithoutDeviceNodes(), sim.WithSeed(fmt.Sprint(seed)))
	w.must(err)
	w.must(os.Mkdir(filepath.Join(w.dir, "specs"), 0o700))
	file := filepath.Join(w.dir, "history.jsonl")
	w.recorder, err = history.Record(t.Context(), history.Sources{
		File: file, Node: "node-1", Driver: "gpu.cleave.dev",
		Of: []history.Source{watch.Simulator{Root: w.node.Root(), Program: "cleave-node"}},
	})
	w.must(err)
	w.publish()
	w.start()
	for range rounds {
		w.act()
	}
	w.sweep()
	w.stop()
	h, err := w.recorder.Stop()
	w.must(err)
	keepHistory(t, file)
	return h
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// publish records the devices of two GPUs.
func (w *world) publish() {
	st, err := w.node.Status()
	w.must(err)
	consumes := func(p place) map[string]int64 {
		all := map[string]int64{}
		for i := p.start; i < p.start+p.size; i++ {
			all[fmt.Sprintf("slice-%d", i)] = 1
		}
		return all
	}
	for i := range 2 {
		address, err := gpu.ParsePCIAddress(st.GPUs[i].PCI)
		w.must(err)
		name := address.DeviceName()
		whole := place{name: name, index: i, size: 8}
		places := []place{whole}
		for _, p := range []place{{profile: 9, size: 4}, {profile: 9, start: 4, size: 4}} {
			places = append(places, place{fmt.Sprintf("%s-mig-9-%d", name, p.start), i, 9, p.start, 4})
		}
		for start := range 7 {
			places = append(places, place{fmt.Sprintf("%s-mig-19-%d", name, start), i, 19, start, 1})
		}
		w.recorder.Add(history.Counters{Set: name, Values: consumes(whole)})
		for _, p := range places {
			w.recorder.Add(history.Device{Name: p.name, Set: name, Consumes: consumes(p)})
		}
		w.places = append(w.places, places...)
	}
}

// start starts a life of the plugin.
func (w *world) start() {
	w.Helper()
	w.plugin = exec.CommandContext(w.Context(), w.program, w.dir)
	w.plugin.Env = append(os.Environ(), "CLEAVE_BROKEN="+w.lacks)
	w.plugin.Stderr = os.Stderr
	asks, err := w.plugin.StdinPipe()
	w.must(err)
	answers, err := w.plugin.StdoutPipe()
	w.must(err)
	w.must(w.plugin.Start())
	w.asks, w.answers = asks, bufio.NewScanner(answers)
	if _, err := w.answer(); err != nil {
		w.Fatalf("start the plugin: %v", err)
	}
}

func (w *world) stop() {
	_ = w.asks.Close()
	_ = w.plugin.Wait() // it may have been killed
}

func (w *world) answer() (protocol.Answer, error) {
	var a protocol.Answer
	if !w.answers.Scan() {
		return a, errors.Join(io.ErrUnexpectedEOF, w.answers.Err())
	}
	return a, json.Unmarshal(w.answers.Bytes(), &a)
}

// ask makes a call; not ok if the plugin was killed and started anew.
func (w *world) ask(r protocol.Request) (a protocol.Answer, ok bool) {
	w.Helper()
	data, err := json.Marshal(r)
	w.must(err)
	if _, err := w.asks.Write(append(data, '\n')); err != nil {
		w.Fatal(err)
	}
	a, err = w.answer()
	if err == nil {
		return a, true
	}
	w.stop()
	w.start()
	return a, false
}

// call is a call of the kubelet, which is recorded.
func (w *world) call(method history.Method, c *claim, r protocol.Request) (a protocol.Answer, ok bool) {
	w.Helper()
	w.calls++
	id := fmt.Sprint(w.calls)
	r.Claim = c.uid
	w.recorder.Add(history.Call{ID: id, Method: method, Claim: c.uid})
	if a, ok = w.ask(r); !ok {
		return a, false
	}
	answer := history.Return{ID: id, Method: method, Claim: c.uid, Error: a.Error}
	for _, d := range a.Devices {
		answer.Devices = append(answer.Devices, history.Prepared{Device: d.Name, CDI: d.CDI})
	}
	w.recorder.Add(answer)
	return a, true
}

// sweep has happen what chance may have left out: the plugin is killed and updated at each step of preparing a partition, and
// a node with one reboots.
func (w *world) sweep() {
	w.endAll()
	w.reboot() // and the partitions of the administrator are gone
	for step := 1; step <= stepsOfPrepare; step++ {
		for _, r := range []protocol.Request{{KillAt: step}, {OpenAt: step}} {
			w.forced = &r
			w.create(w.partition())
			w.endAll()
		}
	}
	w.create(w.partition())
	w.reboot()
	w.endAll()
}

func (w *world) endAll() {
	for len(w.claims) > 0 {
		w.end(w.claims[0])
	}
}

// partition is a partition that can be had.
func (w *world) partition() place {
	for {
		if p := w.places[w.random.IntN(len(w.places))]; p.profile != 0 && !slices.ContainsFunc(w.lost, p.overlaps) {
			return p
		}
	}
}

// disturbed is a call during which the plugin may be killed, or updated.
func (w *world) disturbed(verb protocol.Verb, c *claim) protocol.Request {
	r := protocol.Request{Verb: verb, Devices: []string{c.place.name}}
	if w.forced != nil {
		r.KillAt, r.OpenAt, w.forced = w.forced.KillAt, w.forced.OpenAt, nil
		return r
	}
	switch w.random.IntN(3) {
	case 0:
		r.KillAt = 1 + w.random.IntN(12)
	case 1:
		r.OpenAt = 1 + w.random.IntN(12)
	}
	return r
}

// took ends a rolling update.
func (w *world) took(r protocol.Request) {
	if r.OpenAt > 0 {
		if a, ok := w.ask(protocol.Request{Verb: protocol.Take}); !ok || a.Error != "" {
			w.Fatalf("take over: %v", a)
		}
	}
}

func (w *world) act() {
	switch dice := w.random.IntN(10); {
	case dice < 5 || len(w.claims) == 0:
		w.allocate()
	case dice < 8:
		w.end(w.claims[w.random.IntN(len(w.claims))])
	case dice < 9:
		w.begin(w.claims[w.random.IntN(len(w.claims))]) // asked again
	default:
		w.reboot()
	}
}

// allocate gives a new claim a device that is free.
func (w *world) allocate() {
	p := w.places[w.random.IntN(len(w.places))]
	taken := func(o place) bool { return o.overlaps(p) }
	if slices.ContainsFunc(w.claims, func(c *claim) bool { return taken(c.place) }) || slices.ContainsFunc(w.lost, taken) {
		return
	}
	w.create(p)
}

// create creates a claim with a device and prepares it.
func (w *world) create(p place) {
	w.next++
	c := &claim{uid: fmt.Sprintf("claim-%d", w.next), place: p}
	w.claims = append(w.claims, c)
	w.recorder.Add(history.Claim{
		UID: c.uid, State: history.ClaimAllocated, Devices: []history.Allocated{{Device: p.name}}, Pods: []string{"pod-" + c.uid},
	})
	w.begin(c)
}

// begin prepares a claim and starts its container, if none runs. A pod that cannot start is deleted.
func (w *world) begin(c *claim) {
	r := w.disturbed(protocol.Prepare, c)
	a, ok := w.call(history.Prepare, c, r)
	if !ok {
		a, ok = w.call(history.Prepare, c, protocol.Request{Verb: protocol.Prepare, Devices: r.Devices})
	}
	if !ok {
		w.Fatalf("the plugin has ended by itself")
	}
	w.took(r)
	if a.Error != "" {
		w.end(c)
		return
	}
	if !c.prepared {
		c.prepared = true
		w.container(c, history.ContainerStarted)
	}
}

func (w *world) container(c *claim, state history.ContainerState) {
	w.recorder.Add(history.Container{ID: fmt.Sprintf("%s/%d", c.uid, c.restarts), Name: "main", Pod: "pod-" + c.uid, State: state})
}

// end ends a claim's container, unprepares it and deletes it.
func (w *world) end(c *claim) {
	if c.prepared {
		w.container(c, history.ContainerEnded)
	}
	r := w.disturbed(protocol.Unprepare, c)
	a, ok := w.call(history.Unprepare, c, r)
	for range 3 {
		if !ok || a.Error != "" {
			a, ok = w.call(history.Unprepare, c, protocol.Request{Verb: protocol.Unprepare})
		}
	}
	w.took(r)
	if !ok || a.Error != "" {
		w.lost = append(w.lost, c.place)
	}
	w.claims = slices.DeleteFunc(w.claims, func(o *claim) bool { return o == c })
	w.recorder.Add(history.Claim{UID: c.uid, State: history.ClaimDeleted})
}

// reboot reboots the node. Afterwards an administrator may create a partition where there was one of a claim, before the
// kubelet starts its pods again.
func (w *world) reboot() {
	w.stop()
	for _, c := range w.claims {
		if c.prepared {
			w.container(c, history.ContainerEnded)
		}
		c.prepared = false
		c.restarts++
	}
	w.must(w.node.Driver().Reboot())
	w.lost = nil
	if i := slices.IndexFunc(w.claims, func(c *claim) bool { return c.place.profile != 0 }); i >= 0 {
		w.createUnmanaged(w.claims[i].place)
	}
	w.start()
	for _, c := range slices.Clone(w.claims) {
		w.begin(c)
	}
}

// createUnmanaged creates a partition as nvidia-smi does.
func (w *world) createUnmanaged(p place) {
	w.must(w.node.Init())
	mig := w.node.Device(p.index).MIG()
	_, err := mig.SetMIGMode(true)
	w.must(err)
	gi, err := mig.CreateGPUInstanceWithPlacement(p.profile, gpu.Placement{Start: p.start, Size: p.size})
	w.must(err)
	_, err = gi.CreateComputeInstance(map[int]int{9: 2, 19: 0}[p.profile])
	w.must(err)
	w.must(w.node.Shutdown())
}
