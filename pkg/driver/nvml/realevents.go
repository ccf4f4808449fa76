// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func (l *realLibrary) EventSet() (EventSet, error) {
	set, ret := l.lib.EventSetCreate()
	if err := check("nvmlEventSetCreate", ret); err != nil {
		return nil, err
	}
	return realEventSet{set}, nil
}

// realEventSet is an nvmlEventSet_t.
type realEventSet struct {
	set nvml.EventSet
}

func (e realEventSet) Wait(timeout time.Duration) (EventData, bool, error) {
	data, ret := e.set.Wait(uint32(timeout.Milliseconds()))
	if ret != nvml.SUCCESS {
		if ret == nvml.ERROR_TIMEOUT {
			return EventData{}, false, nil
		}
		return EventData{}, false, check("nvmlEventSetWait", ret)
	}
	return EventData{
		Handle: data.Device, Type: data.EventType, Data: data.EventData,
		GPUInstance: data.GpuInstanceId, ComputeInstance: data.ComputeInstanceId,
	}, true, nil
}

func (e realEventSet) Free() error { return check("nvmlEventSetFree", e.set.Free()) }

func (d realDevice) Handle() any { return d.dev }

func (d realDevice) SupportedEventTypes() (uint64, error) {
	return result(d.dev.GetSupportedEventTypes())("nvmlDeviceGetSupportedEventTypes")
}

func (d realDevice) RegisterEvents(types uint64, set EventSet) error {
	of, ok := set.(realEventSet)
	if !ok {
		return fmt.Errorf("register events with a set of another library: %w", gpu.ErrInvalidArgument)
	}
	return check(fmt.Sprintf("nvmlDeviceRegisterEvents(%#x)", types), d.dev.RegisterEvents(types, of.set))
}
