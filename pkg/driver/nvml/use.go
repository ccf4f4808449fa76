// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Use is how a GPU is used.
type Use interface {
	// Processes are distinct, by PID: nvmlDeviceGetComputeRunningProcesses_v3 and those for graphics and MPS.
	Processes() ([]gpu.Process, error)
	// ProcessSamples are those after a time (nvmlDeviceGetProcessUtilization); ErrNotSupported in MIG mode.
	ProcessSamples(since time.Time) ([]gpu.ProcessSample, error)
	Utilization() (gpu.Activity, error)                                     // nvmlDeviceGetUtilizationRates; ErrNotSupported in MIG mode
	TotalEnergy() (uint64, error)                                           // nvmlDeviceGetTotalEnergyConsumption, millijoules
	GPMSupported() (bool, error)                                            // nvmlGpmQueryDeviceSupport
	GPMSample(gi int) (GPMSample, error)                                    // nvmlGpmSampleGet, or of a GPU instance nvmlGpmMigSampleGet
	GPMActivity(first, second GPMSample) (activity gpu.Activity, err error) // nvmlGpmMetricsGet
}

// GPMSample is an nvmlGpmSample_t.
type GPMSample interface {
	Free() error // nvmlGpmSampleFree
}

// ActivityOf converts percents; what no percent can be is unknown.
func ActivityOf(sm, dram float64) gpu.Activity {
	part := func(percent float64) *float64 {
		if !(percent >= 0 && percent <= 100) { // neither for NaN
			return nil
		}
		percent /= 100
		return &percent
	}
	return gpu.Activity{SM: part(sm), DRAM: part(dram)}
}

// gpmInterval is the shortest time between two samples of GPM (nvml.h, nvmlGpmMetricsGet).
const gpmInterval = 100 * time.Millisecond

// UseQuery says what to read of a GPU's use, besides processes and energy.
type UseQuery struct {
	// GPM are the GPU instances, or gpu.WholeGPU, whose activity is wanted, each with its user: samples of two users are no pair.
	GPM map[int]string
	// Samples are wanted by process.
	Samples bool
}

// Meter reads how the GPUs of a session are used between two looks.
type Meter struct {
	session *Session

	mu   sync.Mutex
	last map[gpu.PCIAddress]*look
}

// NewMeter returns one that has not looked at any GPU yet.
func NewMeter(s *Session) *Meter {
	m := &Meter{session: s, last: map[gpu.PCIAddress]*look{}}
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	s.calls.ending = append(s.calls.ending, m.forget)
	return m
}

// forget frees what looks have left for the next ones.
func (m *Meter) forget() {
	m.mu.Lock()
	last := m.last
	m.last = map[gpu.PCIAddress]*look{}
	m.mu.Unlock() // the driver may hang
	for _, l := range last {
		for _, s := range l.samples {
			_ = s.Free() // fails only if NVML is away
		}
	}
}

// look is what a look at a GPU leaves for the next.
type look struct {
	at      time.Time
	epoch   int64
	samples map[int]heldSample
}

type heldSample struct {
	GPMSample
	user string
}

// take removes the last look at a GPU: a call that hangs may still use it.
func (m *Meter) take(pci gpu.PCIAddress) *look {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.last[pci]
	delete(m.last, pci)
	return last
}

func (m *Meter) put(pci gpu.PCIAddress, l *look) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last[pci] = l
}

// Read reads how the GPU at an address is used, since the last such call. Calls of the session do not wait for it. It is called for a
// GPU once at a time.
func (m *Meter) Read(ctx context.Context, pci gpu.PCIAddress, q UseQuery) (gpu.Reading, error) {
	calls := m.session.calls
	h, err := calls.inventory.handle(pci)
	if err != nil {
		return gpu.Reading{}, fmt.Errorf("read the use of the GPU at %s: %w", pci, err)
	}
	h.dog = h.dog.use
	before := m.take(pci)
	if before == nil || before.epoch != int64(h.epoch) {
		before = &look{} // NVML was shut down meanwhile, and what it had allocated is not touched
	}
	type answer struct {
		reading gpu.Reading
		next    *look
	}
	a, err := once(ctx, calls, h, pci, "reading the use", readTimeout, false, func(dev Device) (answer, error) {
		r := useReader{use: dev.Use(), log: klog.FromContext(ctx).V(4), pci: pci, before: before,
			next: &look{at: time.Now(), epoch: int64(h.epoch), samples: map[int]heldSample{}}}
		reading, err := r.read(q)
		return answer{reading, r.next}, err
	})
	if err != nil {
		return gpu.Reading{}, fmt.Errorf("read the use of the GPU at %s: %w", pci, err)
	}
	m.put(pci, a.next)
	return a.reading, nil
}

// useReader reads a GPU once. What the driver refuses is left out.
type useReader struct {
	use          Use
	log          klog.Logger
	pci          gpu.PCIAddress
	before, next *look
}

func (r *useReader) read(q UseQuery) (gpu.Reading, error) {
	reading := gpu.Reading{At: r.next.at}
	processes, err := r.use.Processes()
	if r.known("processes", err) {
		reading.Processes = processes
	}
	if errors.Is(err, gpu.ErrLost) {
		r.free(r.before.samples)
		return reading, err
	}
	energy, err := r.use.TotalEnergy()
	if r.known("energy", err) {
		reading.Energy = &energy
	}
	if q.Samples && !r.before.at.IsZero() {
		samples, err := r.use.ProcessSamples(r.before.at)
		if r.known("process utilization", err) {
			reading.Samples = samples
		}
	}
	reading.GPM = r.gpm(q)
	if _, wanted := q.GPM[gpu.WholeGPU]; wanted && len(reading.GPM) == 0 {
		utilization, err := r.use.Utilization()
		if r.known("utilization", err) {
			reading.Device = &utilization
		}
	}
	return reading, nil
}

// gpm takes samples, and compares them with those of the last look.
func (r *useReader) gpm(q UseQuery) map[int]gpu.Activity {
	defer func() { r.free(r.before.samples) }()
	if len(q.GPM) == 0 {
		return nil
	}
	supported, err := r.use.GPMSupported()
	if !r.known("support of GPM", err) || !supported {
		return nil
	}
	if r.next.at.Sub(r.before.at) < gpmInterval {
		r.next.samples, r.before.samples = r.before.samples, nil // too early
		return nil
	}
	activities := map[int]gpu.Activity{}
	for _, gi := range slices.Sorted(maps.Keys(q.GPM)) {
		sample, err := r.use.GPMSample(gi)
		if !r.known("a sample of GPM", err) {
			continue
		}
		r.next.samples[gi] = heldSample{sample, q.GPM[gi]}
		first, ok := r.before.samples[gi]
		if !ok || first.user != q.GPM[gi] {
			continue
		}
		activity, err := r.use.GPMActivity(first.GPMSample, sample)
		if r.known("GPM", err) {
			activities[gi] = activity
		}
	}
	return activities
}

func (r *useReader) free(samples map[int]heldSample) {
	for _, gi := range slices.Sorted(maps.Keys(samples)) {
		r.known("freeing a sample", samples[gi].Free())
	}
}

// known reports whether a call has succeeded.
func (r *useReader) known(what string, err error) bool {
	if err != nil && !lacking(err) {
		r.log.Info("The driver does not say how a GPU is used", "what", what, "pci", r.pci, "reason", err.Error())
	}
	return err == nil
}
