// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"slices"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// activeFrom is the SM activity of a claim that is active; counters of an idle GPU are not always zero.
const activeFrom = 0.01

// work is what processes do on a device.
type work struct {
	memory   uint64
	sm, dram float64
	// seen is set once a process is known to be the claim's.
	seen bool
	// memoryUnknown and activityUnknown: processes may be the claim's, or not.
	memoryUnknown, activityUnknown bool
	// maybeActive: an ended process may have been the claim's.
	maybeActive bool
}

// attribution is what each claim of a look does, in order of its holdings, and the SM activity of processes of no claim.
type attribution struct {
	works []work
	other float64
}

// attribute finds the claims of processes.
func attribute(l *Look) attribution {
	a := attribution{works: make([]work, len(l.Holdings))}
	for _, p := range l.Reading.Processes {
		a.process(l, p)
	}
	for _, p := range l.Reading.Processes {
		a.stray(l, p)
	}
	a.samples(l)
	for i := range a.works {
		w := &a.works[i]
		w.memoryUnknown = w.memoryUnknown || l.Owners == nil || l.Reading.Processes == nil
		w.activityUnknown = w.activityUnknown || l.Owners == nil || l.Reading.Samples == nil
		w.sm, w.dram = min(w.sm, 1), min(w.dram, 1)
	}
	return a
}

// process adds a process's memory to its claim.
func (a *attribution) process(l *Look, p gpu.Process) {
	owner, ok := l.Owners[p.PID]
	if !ok {
		return // it has just ended, and its memory is free
	}
	of := l.holders(p.GI, owner)
	for _, i := range of {
		w := &a.works[i]
		w.seen = true
		if len(of) > 1 || p.Memory == nil {
			w.memoryUnknown = true
		} else {
			w.memory += *p.Memory
		}
	}
}

// stray doubts the memory of the claims that a process of none of them may belong to.
func (a *attribution) stray(l *Look, p gpu.Process) {
	if owner, ok := l.Owners[p.PID]; ok && len(l.holders(p.GI, owner)) == 0 {
		a.doubt(l, p.GI, owner, func(w *work) { w.memoryUnknown = w.memoryUnknown || !owner.MPS || !w.seen })
	}
}

// doubt marks the claims that may have the work of a process of none.
func (a *attribution) doubt(l *Look, gi int, owner Owner, mark func(*work)) {
	for i := range l.Holdings {
		h := &l.Holdings[i]
		served := owner.MPS && h.Share == gpu.MPS
		another := !owner.MPS && owner.Pod != "" && h.MorePods
		if (h.GI == gi || gi == anyInstance) && (served || another) {
			mark(&a.works[i])
		}
	}
}

// anyInstance is the GPU instance of a process that may be in any.
const anyInstance = -2

// samples adds the utilization by processes since the last look. A process has one sample or several, whose mean is taken.
func (a *attribution) samples(l *Look) {
	byPID := map[int][]gpu.ProcessSample{}
	var pids []int
	for _, s := range l.Reading.Samples {
		if byPID[s.PID] == nil {
			pids = append(pids, s.PID)
			byPID[s.PID] = []gpu.ProcessSample{}
		}
		if s.SM <= 1 && s.DRAM <= 1 && s.SM >= 0 && s.DRAM >= 0 { // Syllo/nvtop#110
			byPID[s.PID] = append(byPID[s.PID], s)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		owner, ok := l.Owners[pid]
		if len(byPID[pid]) == 0 {
			a.invalid(l, owner, ok)
			continue
		}
		var own, earlier []gpu.ProcessSample
		for _, s := range byPID[pid] {
			if ok && !s.At.Before(owner.Started) {
				own = append(own, s)
			} else {
				earlier = append(earlier, s)
			}
		}
		a.ended(earlier)
		a.sample(l, owner, own)
	}
}

// invalid notes that a process was active, nobody knows how much.
func (a *attribution) invalid(l *Look, owner Owner, known bool) {
	for _, i := range l.holders(anyInstance, owner) {
		a.works[i].activityUnknown = true
	}
	for i := range a.works {
		a.works[i].maybeActive = a.works[i].maybeActive || !known
	}
}

// ended notes that a process was active of which nothing is known any more.
func (a *attribution) ended(samples []gpu.ProcessSample) {
	sm, _ := mean(samples)
	a.other += sm
	for i := range a.works {
		a.works[i].maybeActive = a.works[i].maybeActive || sm > 0
	}
}

func (a *attribution) sample(l *Look, owner Owner, samples []gpu.ProcessSample) {
	if len(samples) == 0 {
		return
	}
	sm, dram := mean(samples)
	of := l.holders(anyInstance, owner)
	for _, i := range of {
		w := &a.works[i]
		if len(of) > 1 {
			w.activityUnknown = true
			continue
		}
		w.sm += sm
		w.dram += dram
	}
	if len(of) != 1 {
		a.other += sm
	}
	if len(of) == 0 && sm > 0 {
		a.doubt(l, anyInstance, owner, func(w *work) { w.activityUnknown = true })
	}
}

func mean(samples []gpu.ProcessSample) (sm, dram float64) {
	for _, s := range samples {
		sm += s.SM / float64(len(samples))
		dram += s.DRAM / float64(len(samples))
	}
	return sm, dram
}

// holders are the indexes of the holdings whose pods a process is of.
func (l *Look) holders(gi int, owner Owner) []int {
	var found []int
	for i := range l.Holdings {
		h := &l.Holdings[i]
		if owner.Pod != "" && (h.GI == gi || gi == anyInstance) && slices.Contains(h.Pods, owner.Pod) {
			found = append(found, i)
		}
	}
	return found
}

// alone reports whether no other claim has the device.
func (l *Look) alone(i int) bool {
	return !slices.ContainsFunc(l.Holdings, func(h Holding) bool { return h.GI == l.Holdings[i].GI && h.Key != l.Holdings[i].Key })
}

// activity is that of a claim since the last look. settled: its device had the same claims then.
func (l *Look) activity(i int, w *work, settled bool) (gpu.Activity, Source) {
	h := &l.Holdings[i]
	if h.Share != "" && h.GI == gpu.WholeGPU && !w.activityUnknown {
		return gpu.Activity{SM: &w.sm, DRAM: &w.dram}, SourceProcess
	}
	if h.Share != "" && !l.alone(i) || !settled {
		return gpu.Activity{}, ""
	}
	if a, ok := l.Reading.GPM[h.GI]; ok && a.SM != nil {
		return a, SourceGPM
	}
	if d := l.Reading.Device; h.GI == gpu.WholeGPU && d != nil {
		return *d, SourceDevice
	}
	return gpu.Activity{}, ""
}
