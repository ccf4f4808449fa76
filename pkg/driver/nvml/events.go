// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// eventKinds are the events to register for. The driver decides which of them a GPU supports.
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

// Events is a subscription to the events of a node's GPUs. Only one goroutine at a time may use it.
type Events struct {
	calls *calls
	set   EventSet
	// sources are the registered GPUs by Device.Handle.
	sources map[any]gpu.PCIAddress
	epoch   int64
	// hanging is set if a call may still use the set, which is then never freed.
	hanging bool
	// outdated is set once the subscription lacks a GPU.
	outdated atomic.Bool
}

// Events subscribes to all GPUs; earlier events are lost. GPUs that are lost or have no events are skipped. The error
// wraps gpu.ErrNotSupported if no GPU has events.
func (s *Session) Events(ctx context.Context) (*Events, error) {
	if err := s.calls.dogs.events.hangs(); err != nil {
		return nil, fmt.Errorf("create an event set: %w", err)
	}
	klog.FromContext(ctx).V(6).Info("Calling NVML", "function", "nvmlEventSetCreate")
	e, err := bounded(ctx, s.calls.dogs.library, "nvmlEventSetCreate", readTimeout, true, s.calls.subscribe)
	if err != nil {
		return nil, fmt.Errorf("create an event set: %w", err)
	}
	node := s.Node()
	for i := range node.GPUs {
		pci := node.GPUs[i].PCI
		if err := e.register(ctx, pci); err != nil {
			if !slices.ContainsFunc(noEvents, func(known error) bool { return errors.Is(err, known) }) {
				// Other errors leave the state of the set undefined (nvmlDeviceRegisterEvents).
				return nil, errors.Join(err, e.Close())
			}
			e.hanging = e.hanging || errors.Is(err, gpu.ErrHangs)
			klog.FromContext(ctx).V(2).Info("Cannot watch the events of a GPU", "pci", pci, "reason", err.Error())
		}
	}
	if len(e.sources) == 0 {
		return nil, errors.Join(fmt.Errorf("watch the events of %d GPUs: %w", len(node.GPUs), gpu.ErrNotSupported), e.Close())
	}
	return e, nil
}

// subscribe opens a subscription to no GPU yet. A restart and Retake know it from the start: GPUs are registered one by one, and either
// may come in between.
func (c *calls) subscribe() (*Events, error) {
	set, err := c.lib.EventSet()
	if err != nil {
		return nil, err
	}
	e := &Events{calls: c, set: set, sources: map[any]gpu.PCIAddress{}, epoch: c.epoch.Load()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[e] = true
	return e, nil
}

// noEvents are the errors of a GPU that is skipped.
var noEvents = []error{gpu.ErrLost, gpu.ErrNotSupported, gpu.ErrNotFound, gpu.ErrHangs, gpu.ErrReleased}

// register subscribes to one GPU.
func (e *Events) register(ctx context.Context, pci gpu.PCIAddress) error {
	source, err := ask(ctx, e.calls, pci, "nvmlDeviceRegisterEvents", func(dev Device) (any, error) {
		if e.calls.epoch.Load() != e.epoch {
			return nil, errRestarted // which has freed the set
		}
		supported, err := dev.SupportedEventTypes()
		if err != nil {
			return nil, fmt.Errorf("read the event types of the GPU at %s: %w", pci, err)
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

// Next waits for the next event until a timeout. An error may concern a single, unnamed GPU and may recur immediately:
// back off before the next call.
func (e *Events) Next(timeout time.Duration) (event gpu.Event, happened bool, err error) {
	type answer struct {
		data     EventData
		happened bool
	}
	a, err := bounded(context.Background(), e.calls.dogs.events, "nvmlEventSetWait_v2", timeout+readTimeout,
		true, func() (answer, error) {
			if e.calls.epoch.Load() != e.epoch || e.outdated.Load() {
				return answer{}, errRestarted
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

// wholeGPU is the GPU instance ID of events about a whole GPU.
const wholeGPU = 0xFFFFFFFF

// Close ends the subscription.
func (e *Events) Close() error {
	if e.hanging {
		e.forget()
		return fmt.Errorf("free the event set: %w", gpu.ErrHangs)
	}
	return e.shutdown()
}

// shutdown frees the set unless a restart has done so, for which it waits.
func (e *Events) shutdown() error {
	_, err := bounded(context.Background(), e.calls.dogs.events, "nvmlEventSetFree", changeTimeout, true, func() (struct{}, error) {
		e.forget()
		if e.calls.epoch.Load() != e.epoch {
			return struct{}{}, nil // freed when the session restarted
		}
		return struct{}{}, e.set.Free()
	})
	return err
}

// forget keeps restarts from freeing the set.
func (e *Events) forget() {
	e.calls.mu.Lock()
	defer e.calls.mu.Unlock()
	delete(e.calls.events, e)
}

// Recovery reads the recovery action that the driver requests for the GPU at an address, gpu.RecoveryUnknown, without an error, if the
// driver does not report one, and whether the remapping of a row of memory has ever failed, which survives resets and qualifies the GPU for
// replacement (nvml.h, NVML_FI_DEV_REMAPPED_FAILURE, "1=yes 0=no"; NVIDIA, "GPU Memory Error Management", row-remapping failure flag).
func (s *Session) Recovery(ctx context.Context, pci gpu.PCIAddress) (gpu.Recovery, error) {
	return ask(ctx, s.calls, pci, "nvmlDeviceGetFieldValues", func(dev Device) (gpu.Recovery, error) {
		reported := gpu.Recovery{Action: gpu.RecoveryUnknown}
		values, err := dev.FieldValues([]Field{{ID: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {ID: nvml.FI_DEV_REMAPPED_FAILURE}})
		if lacking(err) || errors.Is(err, gpu.ErrNotFound) {
			return reported, nil
		}
		if err != nil {
			return reported, fmt.Errorf("read the recovery action of the GPU at %s: %w", pci, err)
		}
		if v := values[1]; v.Err == nil && v.Value <= 1 {
			failed := v.Value == 1
			reported.RemapFailed = &failed
		}
		switch err := values[0].Err; {
		case lacking(err) || errors.Is(err, gpu.ErrNotFound):
			return reported, nil
		case err != nil:
			return reported, fmt.Errorf("read the recovery action of the GPU at %s: %w", pci, err)
		}
		reported.Action = gpu.RecoveryAction(values[0].Value)
		return reported, nil
	})
}
