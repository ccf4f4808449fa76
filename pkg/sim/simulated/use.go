// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"errors"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// use is how a simulated GPU is used as nvml.Use.
type use struct {
	dev *sim.Device
}

func (u use) Processes() ([]gpu.Process, error) {
	clients, err := u.dev.Memory().Processes()
	if err != nil {
		return nil, err
	}
	all := make([]gpu.Process, 0, len(clients))
	for _, c := range clients {
		all = append(all, gpu.Process{PID: c.PID, GI: c.GPUInstance, Memory: &c.Memory})
	}
	return all, nil
}

func (u use) ProcessSamples(since time.Time) ([]gpu.ProcessSample, error) {
	samples, err := u.dev.Telemetry().ProcessUtilization(since.UnixMicro())
	if err != nil && !errors.Is(err, gpu.ErrNotFound) {
		return nil, err
	}
	all := make([]gpu.ProcessSample, 0, len(samples))
	for _, s := range samples {
		all = append(all, gpu.ProcessSample{PID: s.PID, At: time.UnixMicro(s.Timestamp), SM: float64(s.SM) / 100, DRAM: float64(s.DRAM) / 100})
	}
	return all, nil
}

func (u use) Utilization() (gpu.Activity, error) {
	sm, dram, err := u.dev.Telemetry().Utilization()
	return nvml.ActivityOf(float64(sm), float64(dram)), err
}

func (u use) TotalEnergy() (uint64, error) { return u.dev.Telemetry().TotalEnergy() }
func (u use) GPMSupported() (bool, error)  { return u.dev.Telemetry().GPMSupported() }
func (u use) GPMActivity(first, second nvml.GPMSample) (gpu.Activity, error) {
	sm, dram, ok := second.(sample).Since(first.(sample).GPMSample)
	if !ok {
		return gpu.Activity{}, nil
	}
	return nvml.ActivityOf(sm, dram), nil
}

func (u use) GPMSample(gi int) (nvml.GPMSample, error) {
	s, err := u.dev.Telemetry().GPMSample(gi)
	return sample{s}, err
}

// sample is a simulated sample as an nvml.GPMSample.
type sample struct{ sim.GPMSample }

func (sample) Free() error { return nil }
