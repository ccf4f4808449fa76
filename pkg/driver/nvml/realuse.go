// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// realUse is how an nvmlDevice_t is used.
type realUse struct {
	lib nvml.Interface
	dev nvml.Device
	has functions
}

func (u realUse) Processes() ([]gpu.Process, error) {
	compute, ret := u.dev.GetComputeRunningProcesses()
	if err := check("nvmlDeviceGetComputeRunningProcesses", ret); err != nil {
		return nil, err
	}
	graphics, ret := u.dev.GetGraphicsRunningProcesses()
	if err := check("nvmlDeviceGetGraphicsRunningProcesses", ret); err != nil && !lacking(err) {
		return nil, err
	}
	all := slices.Concat(compute, graphics)
	if mps := "nvmlDeviceGetMPSComputeRunningProcesses_v3"; u.has(mps) {
		served, ret := u.dev.GetMPSComputeRunningProcesses()
		if err := check(mps, ret); err != nil && !lacking(err) {
			return nil, err
		}
		all = append(all, served...)
	}
	return distinct(all), nil
}

// distinct lists each process once, with the most memory of its entries: those of several lists are the same.
func distinct(all []nvml.ProcessInfo) []gpu.Process {
	processes := []gpu.Process{}
	for _, p := range all {
		one := gpu.Process{PID: int(p.Pid), GI: gpu.WholeGPU}
		if p.GpuInstanceId != math.MaxUint32 {
			one.GI = int(p.GpuInstanceId)
		}
		if p.UsedGpuMemory != math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			one.Memory = &p.UsedGpuMemory
		}
		at := slices.IndexFunc(processes, func(o gpu.Process) bool { return o.PID == one.PID && o.GI == one.GI })
		if at < 0 {
			processes = append(processes, one)
		} else if was := processes[at].Memory; was == nil || one.Memory != nil && *one.Memory > *was {
			processes[at].Memory = cmp.Or(one.Memory, was)
		}
	}
	slices.SortFunc(processes, func(a, b gpu.Process) int { return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GI, b.GI)) })
	return processes
}

func (u realUse) ProcessSamples(since time.Time) (all []gpu.ProcessSample, err error) {
	const call = "nvmlDeviceGetProcessUtilization"
	defer func() {
		// go-nvml v0.13.4-0 cuts its buffer to the length that the second of two calls returns, which may exceed it.
		if recover() != nil {
			all, err = nil, fmt.Errorf("%s: more processes than at the call for their number", call)
		}
	}()
	samples, ret := u.dev.GetProcessUtilization(uint64(since.UnixMicro()))
	if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INSUFFICIENT_SIZE && samples != nil && len(samples) == 0 {
		return []gpu.ProcessSample{}, nil
	}
	if err := check(call, ret); err != nil {
		return nil, err
	}
	return convert(samples, func(s nvml.ProcessUtilizationSample) gpu.ProcessSample {
		at := time.UnixMicro(int64(s.TimeStamp))
		return gpu.ProcessSample{PID: int(s.Pid), At: at, SM: float64(s.SmUtil) / 100, DRAM: float64(s.MemUtil) / 100}
	}), nil
}

func (u realUse) Utilization() (gpu.Activity, error) {
	v, ret := u.dev.GetUtilizationRates()
	return ActivityOf(float64(v.Gpu), float64(v.Memory)), check("nvmlDeviceGetUtilizationRates", ret)
}

func (u realUse) TotalEnergy() (uint64, error) {
	return result(u.dev.GetTotalEnergyConsumption())("nvmlDeviceGetTotalEnergyConsumption")
}

func (u realUse) GPMSupported() (bool, error) {
	for _, function := range []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	} {
		if err := u.has.require(function); err != nil {
			return false, err
		}
	}
	support, ret := u.dev.GpmQueryDeviceSupport()
	return support.IsSupportedDevice != 0, check("nvmlGpmQueryDeviceSupport", ret)
}

func (u realUse) GPMSample(gi int) (GPMSample, error) {
	sample, ret := u.lib.GpmSampleAlloc()
	if err := check("nvmlGpmSampleAlloc", ret); err != nil {
		return nil, err
	}
	call := "nvmlGpmSampleGet"
	if gi == gpu.WholeGPU {
		ret = u.dev.GpmSampleGet(sample)
	} else {
		call = fmt.Sprintf("nvmlGpmMigSampleGet(%d)", gi)
		ret = u.dev.GpmMigSampleGet(gi, sample)
	}
	if err := check(call, ret); err != nil {
		return nil, errors.Join(err, realSample{sample}.Free())
	}
	return realSample{sample}, nil
}

func (u realUse) GPMActivity(first, second GPMSample) (gpu.Activity, error) {
	a, ok1 := first.(realSample)
	b, ok2 := second.(realSample)
	if !ok1 || !ok2 {
		return gpu.Activity{}, fmt.Errorf("compare samples of other libraries: %w", gpu.ErrInvalidArgument)
	}
	get := nvml.GpmMetricsGetType{NumMetrics: 2, Sample1: a.sample, Sample2: b.sample}
	get.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_SM_UTIL)
	get.Metrics[1].MetricId = uint32(nvml.GPM_METRIC_DRAM_BW_UTIL)
	if err := check("nvmlGpmMetricsGet", u.lib.GpmMetricsGet(&get)); err != nil {
		return gpu.Activity{}, err
	}
	value := func(m *nvml.GpmMetric) float64 {
		if nvml.Return(m.NvmlReturn) != nvml.SUCCESS {
			return math.NaN()
		}
		return m.Value
	}
	return ActivityOf(value(&get.Metrics[0]), value(&get.Metrics[1])), nil
}

// realSample is an nvmlGpmSample_t.
type realSample struct{ sample nvml.GpmSample }

func (s realSample) Free() error { return check("nvmlGpmSampleFree", s.sample.Free()) }
