// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Load is how busy a client keeps its GPU or partition, in percent of time: of all its multiprocessors, and of its memory bandwidth.
type Load struct {
	SM   int `json:"sm"`
	DRAM int `json:"dram,omitempty"`
}

// check refuses what is no load.
func (l *Load) check() error {
	if l == nil || l.SM < 0 || l.SM > 100 || l.DRAM < 0 || l.DRAM > 100 {
		return errors.New("want percents of 0 to 100")
	}
	return nil
}

// busyLoad is that of clients of which none was set.
var busyLoad = Load{SM: 97, DRAM: 41}

// The driver samples the utilization by processes every second, and keeps so many samples (open-gpu-kernel-modules 595.45.04:
// the RPC event gpuacct_perfmon_util_samples, "GSP RM sampling timer (a 1 sec interval)"; ctrl2080perf.h,
// NV2080_CTRL_PERF_GPUMON_SAMPLE_COUNT_PERFMON_UTIL).
const (
	sampleEvery = int64(time.Second / time.Microsecond)
	// KeptSamples is how many fit into the driver's buffer.
	KeptSamples = 72
)

// gpmRefresh is the interval at which counters of GPM change: "The interval between these two nvmlGpmSampleGet() calls should be
// greater than 100ms due to the internal sample refresh rate" (nvml.h, nvmlGpmMetricsGet).
const gpmRefresh = int64(100 * time.Millisecond / time.Microsecond)

// work is what a GPU has done since its driver was loaded. Times are microseconds of Unix time.
type work struct {
	Begun int64 `json:"begun,omitempty"`
	// At is the time up to which it is counted; the present clients have gone on since.
	At        int64         `json:"at,omitempty"`
	Whole     meter         `json:"whole,omitzero"`
	Instances map[int]meter `json:"instances,omitempty"` // by ID of the GPU instance
	// Past are the loads that have ended and of which samples are kept.
	Past []span `json:"past,omitempty"`
}

// meter counts percent times microseconds.
type meter struct {
	SM   float64 `json:"sm,omitempty"`
	DRAM float64 `json:"dram,omitempty"`
}

// span is a load of a process from a time to another.
type span struct {
	PID  int   `json:"pid"`
	Load Load  `json:"load"`
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// load is that of a client.
func (c *Client) load() Load {
	switch {
	case c.Leaked:
		return Load{}
	case c.Load == nil:
		return busyLoad
	}
	return *c.Load
}

// microseconds is the present time.
func (c *core) microseconds() int64 { return c.now().UnixMicro() }

// account counts the work up to a time, before clients or their loads change.
func (st *gpuState) account(b *Board, now int64) {
	w := st.workAt(b, now)
	w.Past = slices.DeleteFunc(st.spans(now), func(s span) bool { return s.To < now-KeptSamples*sampleEvery || s.To <= s.From })
	st.Work = w
}

// spans are the loads up to a time, by which the present ones are cut.
func (st *gpuState) spans(now int64) []span {
	all := slices.Clone(st.Work.Past)
	for i := range st.Clients {
		if c := &st.Clients[i]; c.GPUInstance < 0 && c.load().SM > 0 {
			all = append(all, span{c.PID, c.load(), st.Work.At, now})
		}
	}
	return all
}

// workAt is the work up to a time.
func (st *gpuState) workAt(b *Board, now int64) work {
	w := st.Work
	if w.Begun == 0 {
		w.Begun, w.At = now, now
	}
	took := float64(max(now-w.At, 0))
	var whole meter
	instances := map[int]meter{}
	for i := range st.Clients {
		c := &st.Clients[i]
		l := c.load()
		part := 1.0
		if gi := st.findInstance(c.GPUInstance); gi != nil {
			part = b.part(gi.Profile)
			m := instances[gi.ID]
			instances[gi.ID] = meter{m.SM + float64(l.SM), m.DRAM + float64(l.DRAM)}
		}
		whole = meter{whole.SM + part*float64(l.SM), whole.DRAM + part*float64(l.DRAM)}
	}
	w.Whole = meter{w.Whole.SM + took*min(whole.SM, 100), w.Whole.DRAM + took*min(whole.DRAM, 100)}
	counted := map[int]meter{}
	for _, gi := range st.Instances { // those of partitions that are gone are forgotten
		m, before := instances[gi.ID], w.Instances[gi.ID]
		counted[gi.ID] = meter{before.SM + took*min(m.SM, 100), before.DRAM + took*min(m.DRAM, 100)}
	}
	w.Instances, w.At = counted, max(now, w.At)
	return w
}

// part is the part of the board's multiprocessors that a profile has.
func (b *Board) part(profileID int) float64 {
	most := 0
	for i := range b.MIG.Profiles {
		most = max(most, b.MIG.Profiles[i].Multiprocessors)
	}
	if p := b.profileByID(profileID); p != nil && most > 0 {
		return float64(p.Multiprocessors) / float64(most)
	}
	return 0
}

// SetLoad makes a process keep a GPU or partition busy. One that does not use the GPU yet begins to, as Add says.
func (cs *Clients) SetLoad(index int, c Client) error {
	if err := cs.checkIndex(index); err != nil {
		return err
	}
	l := c.Load
	if err := l.check(); err != nil {
		return fmt.Errorf("set the load of process %d: %w", c.PID, err)
	}
	st, err := cs.gpus[index].load()
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(st.Clients, func(o Client) bool { return o.PID == c.PID }); at >= 0 {
		was := st.Clients[at]
		was.Load, was.Memory = l, cmp.Or(c.Memory, was.Memory)
		c = was
	}
	return cs.Add(index, c)
}

// ProcessSample is the utilization of a GPU by a process, in percent (nvmlProcessUtilizationSample_t).
type ProcessSample struct {
	PID       int
	Timestamp int64 // the latest sample of it, in microseconds of Unix time
	SM, DRAM  int
}

// ProcessUtilization lists the processes that were active after a time, in microseconds of Unix time, by PID: "One utilization sample
// structure is returned per process running, that had some non-zero utilization during the last sample period"; ErrNotFound for none,
// ErrNotSupported "on MIG-enabled GPUs" (nvml.h, nvmlDeviceGetProcessUtilization; ctrl2080perf.h: "not supported with SMC enabled").
// A value is the mean of the samples in the buffer after the time (Syllo/nvtop#91).
func (d Telemetry) ProcessUtilization(since int64) ([]ProcessSample, error) {
	const call = "nvmlDeviceGetProcessUtilization"
	st, err := d.load(call)
	if err != nil {
		return nil, err
	}
	if st.MIG {
		return nil, fail(call, CodeNotSupported, "GPU %d is in MIG mode", d.index)
	}
	now := d.node.microseconds()
	since = max(since, now-KeptSamples*sampleEvery)
	ticks := now/sampleEvery - since/sampleEvery
	found := map[int]*ProcessSample{}
	sums := map[int]meter{}
	for _, s := range st.spans(now) {
		from, to := max(s.From, since)/sampleEvery, min(s.To, now)/sampleEvery
		if n := to - from; n > 0 {
			m := sums[s.PID]
			sums[s.PID] = meter{m.SM + float64(n*int64(s.Load.SM)), m.DRAM + float64(n*int64(s.Load.DRAM))}
			found[s.PID] = &ProcessSample{PID: s.PID, Timestamp: to * sampleEvery}
		}
	}
	var all []ProcessSample
	for pid, s := range found {
		s.SM, s.DRAM = int(sums[pid].SM/float64(ticks)+.5), int(sums[pid].DRAM/float64(ticks)+.5)
		all = append(all, *s)
	}
	if len(all) == 0 {
		return nil, fail(call, CodeNotFound, "no process was active on GPU %d", d.index)
	}
	slices.SortFunc(all, func(a, b ProcessSample) int { return cmp.Compare(a.PID, b.PID) })
	return all, nil
}

// TotalEnergy is the energy since the driver was loaded, in millijoules (nvmlDeviceGetTotalEnergyConsumption): a tenth of the power
// limit, and up to three quarters more when busy.
func (d Telemetry) TotalEnergy() (uint64, error) {
	const call = "nvmlDeviceGetTotalEnergyConsumption"
	st, err := d.load(call)
	if err != nil {
		return 0, err
	}
	if d.board.Architecture < volta {
		return 0, fail(call, CodeNotSupported, "%s has no such counter", d.board.Product)
	}
	now := d.node.microseconds()
	if st.Work.Begun == 0 {
		if err := d.change(call, func(st *gpuState) error { st.account(d.board, now); return nil }); err != nil {
			return 0, err
		}
	}
	w := st.workAt(d.board, now)
	milliwatts := float64(d.board.PowerLimitWatts) * 1000
	return uint64(milliwatts * (0.1*float64(w.At-w.Begun) + 0.75*w.Whole.SM/100) / 1e6), nil
}

// NVML_DEVICE_ARCH_*.
const (
	volta  = 5
	hopper = 9
)

// GPMSample is a sample of the counters of GPM.
type GPMSample struct {
	// At is when the counters were read by the hardware, in microseconds of Unix time.
	At       int64
	SM, DRAM float64 // percent times microseconds
}

// Since is the activity between an earlier sample and this one, in percent. It is false if the counters have not changed.
func (s GPMSample) Since(earlier GPMSample) (sm, dram float64, ok bool) {
	took := float64(s.At - earlier.At)
	if took <= 0 {
		return 0, 0, false
	}
	return (s.SM - earlier.SM) / took, (s.DRAM - earlier.DRAM) / took, true
}

// GPMSupported reports whether the GPU has performance counters for GPM: Hopper and later (nvmlGpmQueryDeviceSupport).
func (d Telemetry) GPMSupported() (bool, error) {
	return d.board.Architecture >= hopper, d.node.enter("nvmlGpmQueryDeviceSupport", d.index)
}

// GPMSample is a sample of a GPU or, if gi is not negative, of a GPU instance (nvmlGpmSampleGet, nvmlGpmMigSampleGet).
func (d Telemetry) GPMSample(gi int) (GPMSample, error) {
	call := "nvmlGpmSampleGet"
	if gi >= 0 {
		call = "nvmlGpmMigSampleGet"
	}
	st, err := d.load(call)
	if err != nil {
		return GPMSample{}, err
	}
	if d.board.Architecture < hopper {
		return GPMSample{}, fail(call, CodeNotSupported, "%s has no GPM", d.board.Product)
	}
	if gi >= 0 && st.findInstance(gi) == nil {
		return GPMSample{}, fail(call, CodeInvalidArgument, "GPU %d has no GPU instance %d", d.index, gi)
	}
	w := st.workAt(d.board, d.node.microseconds()/gpmRefresh*gpmRefresh)
	m := w.Whole
	if gi >= 0 {
		m = w.Instances[gi]
	}
	return GPMSample{At: w.At, SM: m.SM, DRAM: m.DRAM}, nil
}

// Utilization of the GPU and of its memory in percent (nvmlDeviceGetUtilizationRates); ErrNotSupported in MIG mode.
func (d Telemetry) Utilization() (gpuPercent, memoryPercent int, err error) {
	const call = "nvmlDeviceGetUtilizationRates"
	st, err := d.load(call)
	switch {
	case err != nil:
		return 0, 0, err
	case st.MIG:
		return 0, 0, fail(call, CodeNotSupported, "GPU %d is in MIG mode", d.index)
	}
	for i := range st.Clients {
		l := st.Clients[i].load()
		gpuPercent, memoryPercent = min(gpuPercent+l.SM, 100), min(memoryPercent+l.DRAM, 100)
	}
	return gpuPercent, memoryPercent, nil
}
