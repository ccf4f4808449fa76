// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// eventKinds are the events that are asked for; which of them a GPU reports is its driver's.
var eventKinds = map[uint64]gpu.EventKind{
	nvml.EventMigConfigChange:         gpu.MIGChanged,
	nvml.EventTypeXidCriticalError:    gpu.XIDReported,
	nvml.EventTypeDoubleBitEccError:   gpu.DoubleBitECC,
	nvml.EventTypeGpuUnavailableError: gpu.GPUUnavailable,
	nvml.EventTypeGpuRecoveryAction:   gpu.RecoveryChanged,
}

// wantedEvents is the mask of eventKinds.
func wantedEvents() uint64 {
	var mask uint64
	for bit := range eventKinds {
		mask |= bit
	}
	return mask
}

// Events are what the GPUs of a node report. One goroutine at a time may use them.
type Events struct {
	session *Session
	set     EventSet
	// sources are the GPUs that are watched, by Device.Handle.
	sources map[any]gpu.PCIAddress
	epoch   int64
	// hanging tells that a call may still use the set, which therefore is never freed.
	hanging bool
}

// Events watches all GPUs from now on: what was reported before is lost. A GPU that cannot be watched, because it is
// lost or its driver has no events, is left out. It wraps gpu.ErrNotSupported where no GPU can be watched.
func (s *Session) Events(ctx context.Context) (*Events, error) {
	if err := s.dogs.events.hangs(); err != nil {
		return nil, fmt.Errorf("make a set of events: %w", err)
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlEventSetCreate")
	set, err := bounded(ctx, s.dogs.library, "nvmlEventSetCreate", s.patience.Read, true, s.lib.EventSet)
	if err != nil {
		return nil, fmt.Errorf("make a set of events: %w", err)
	}
	e := &Events{session: s, set: set, sources: map[any]gpu.PCIAddress{}, epoch: s.epoch.Load()}
	node := s.Node()
	for i := range node.GPUs {
		pci := node.GPUs[i].PCI
		if err := e.register(ctx, pci); err != nil {
			if !errors.Is(err, gpu.ErrLost) && !errors.Is(err, gpu.ErrNotSupported) && !errors.Is(err, gpu.ErrNotFound) && !errors.Is(err, gpu.ErrHangs) {
				// After some errors nothing can be said of the set any more (nvmlDeviceRegisterEvents).
				return nil, errors.Join(err, set.Free())
			}
			e.hanging = e.hanging || errors.Is(err, gpu.ErrHangs)
			klog.FromContext(ctx).V(2).Info("A GPU's events cannot be watched", "pci", pci, "reason", err.Error())
		}
	}
	if len(e.sources) == 0 {
		return nil, errors.Join(fmt.Errorf("watch the events of %d GPUs: %w", len(node.GPUs), gpu.ErrNotSupported), e.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[e] = true
	return e, nil
}

// register watches one GPU.
func (e *Events) register(ctx context.Context, pci gpu.PCIAddress) error {
	source, err := ask(ctx, e.session, pci, "nvmlDeviceRegisterEvents", func(dev Device) (any, error) {
		supported, err := dev.SupportedEventTypes()
		if err != nil {
			return nil, fmt.Errorf("read which events the GPU at %s has: %w", pci, err)
		}
		mask := supported & wantedEvents()
		if mask == 0 {
			return nil, fmt.Errorf("watch the events of the GPU at %s, which has %#x: %w", pci, supported, gpu.ErrNotSupported)
		}
		if err := dev.RegisterEvents(mask, e.set); err != nil {
			return nil, fmt.Errorf("watch the events %#x of the GPU at %s: %w", mask, pci, err)
		}
		return dev.Handle(), nil
	})
	if err == nil {
		e.sources[source] = pci
	}
	return err
}

// Next returns the next event, waiting no longer than a timeout. An error may be about one GPU alone, which is not
// named, and may come at once and again: wait before the next call.
func (e *Events) Next(timeout time.Duration) (event gpu.Event, happened bool, err error) {
	type answer struct {
		data     EventData
		happened bool
	}
	a, err := bounded(context.Background(), e.session.dogs.events, "nvmlEventSetWait_v2", timeout+e.session.patience.Read, true, func() (answer, error) {
		if e.session.epoch.Load() != e.epoch {
			return answer{}, errAnew
		}
		data, happened, err := e.set.Wait(timeout)
		return answer{data, happened}, err
	})
	if err != nil || !a.happened {
		if err != nil {
			e.hanging = e.hanging || errors.Is(err, gpu.ErrHangs)
			err = fmt.Errorf("wait for the events of %d GPUs: %w", len(e.sources), err)
		}
		return gpu.Event{}, false, err
	}
	data := a.data
	event = gpu.Event{Kind: eventKinds[data.Type]}
	if pci, known := e.sources[data.Handle]; known {
		event.PCI = &pci
	}
	if event.Kind == gpu.XIDReported {
		event.XID = int(data.Data)
	}
	if data.GPUInstance != wholeGPU {
		gi := int(data.GPUInstance)
		event.GI = &gi
	}
	return event, true, nil
}

// wholeGPU is a GPU instance of an event that is none.
const wholeGPU = 0xFFFFFFFF

// Close ends the watch.
func (e *Events) Close() error {
	e.session.mu.Lock()
	delete(e.session.events, e)
	e.session.mu.Unlock()
	if e.hanging {
		return fmt.Errorf("end the watch of events: %w", gpu.ErrHangs)
	}
	if e.session.epoch.Load() != e.epoch {
		return nil // freed when the session was started anew
	}
	return e.set.Free()
}

// RecoveryAction reads what the GPU at an address needs before it can be used again. A driver that does not tell is no
// error.
func (s *Session) RecoveryAction(ctx context.Context, pci gpu.PCIAddress) (gpu.RecoveryAction, error) {
	return ask(ctx, s, pci, "nvmlDeviceGetFieldValues", func(dev Device) (gpu.RecoveryAction, error) {
		values, err := dev.FieldValues([]Field{{ID: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}})
		if err == nil {
			err = values[0].Err
		}
		if lacking(err) || errors.Is(err, gpu.ErrNotFound) {
			return gpu.RecoveryUnknown, nil
		}
		if err != nil {
			return gpu.RecoveryUnknown, fmt.Errorf("read the recovery action of the GPU at %s: %w", pci, err)
		}
		return gpu.RecoveryAction(values[0].Value), nil
	})
}
