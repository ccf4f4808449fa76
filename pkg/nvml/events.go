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
}

// Events watches all GPUs from now on: what was reported before is lost. A GPU that cannot be watched, because it is
// lost or its driver has no events, is left out. It wraps gpu.ErrNotSupported where no GPU can be watched.
func (s *Session) Events(ctx context.Context) (*Events, error) {
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlEventSetCreate")
	set, err := s.lib.EventSet()
	if err != nil {
		return nil, fmt.Errorf("make a set of events: %w", err)
	}
	e := &Events{session: s, set: set, sources: map[any]gpu.PCIAddress{}}
	node := s.Node()
	for i := range node.GPUs {
		pci := node.GPUs[i].PCI
		if err := e.register(pci); err != nil {
			if !errors.Is(err, gpu.ErrLost) && !errors.Is(err, gpu.ErrNotSupported) {
				// After some errors nothing can be said of the set any more (nvmlDeviceRegisterEvents).
				return nil, errors.Join(err, set.Free())
			}
			klog.FromContext(ctx).V(2).Info("A GPU's events cannot be watched", "pci", pci, "reason", err.Error())
		}
	}
	if len(e.sources) == 0 {
		return nil, errors.Join(fmt.Errorf("watch the events of %d GPUs: %w", len(node.GPUs), gpu.ErrNotSupported), set.Free())
	}
	return e, nil
}

// register watches one GPU.
func (e *Events) register(pci gpu.PCIAddress) error {
	dev, err := e.session.device(pci)
	if err != nil {
		return err
	}
	supported, err := dev.SupportedEventTypes()
	if err != nil {
		return fmt.Errorf("read which events the GPU at %s has: %w", pci, err)
	}
	mask := supported & wantedEvents()
	if mask == 0 {
		return fmt.Errorf("watch the events of the GPU at %s, which has %#x: %w", pci, supported, gpu.ErrNotSupported)
	}
	if err := dev.RegisterEvents(mask, e.set); err != nil {
		return fmt.Errorf("watch the events %#x of the GPU at %s: %w", mask, pci, err)
	}
	e.sources[dev.Handle()] = pci
	return nil
}

// Next returns the next event, waiting no longer than a timeout. An error may be about one GPU alone, which is not
// named, and may come at once and again: wait before the next call.
func (e *Events) Next(timeout time.Duration) (event gpu.Event, happened bool, err error) {
	data, happened, err := e.set.Wait(timeout)
	if err != nil || !happened {
		if err != nil {
			err = fmt.Errorf("wait for the events of %d GPUs: %w", len(e.sources), err)
		}
		return gpu.Event{}, false, err
	}
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
func (e *Events) Close() error { return e.set.Free() }

// RecoveryAction reads what the GPU at an address needs before it can be used again. A driver that does not tell is no
// error.
func (s *Session) RecoveryAction(ctx context.Context, pci gpu.PCIAddress) (gpu.RecoveryAction, error) {
	dev, err := s.device(pci)
	if err != nil {
		return gpu.RecoveryUnknown, err
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlDeviceGetFieldValues", "field", nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, "pci", pci)
	values, err := dev.FieldValues([]Field{{ID: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}})
	if err == nil {
		err = values[0].Err
	}
	if errors.Is(err, gpu.ErrNotSupported) || errors.Is(err, gpu.ErrInvalidArgument) || errors.Is(err, gpu.ErrNotFound) {
		return gpu.RecoveryUnknown, nil
	}
	if err != nil {
		return gpu.RecoveryUnknown, fmt.Errorf("read the recovery action of the GPU at %s: %w", pci, err)
	}
	return gpu.RecoveryAction(values[0].Value), nil
}
