// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"sync"
	"time"
)

// Event types (nvmlEventType*).
const (
	EventSingleBitECC      = 0x1
	EventDoubleBitECC      = 0x2
	EventXID               = 0x8
	EventMIGConfigChange   = 0x100
	EventGPUUnavailable    = 0x4000
	EventGPURecoveryAction = 0x8000

	supportedEvents = EventSingleBitECC | EventDoubleBitECC | EventXID | EventMIGConfigChange |
		EventGPUUnavailable | EventGPURecoveryAction
)

// eventPoll is the interval at which a waiting event set checks for events from other processes.
const eventPoll = 20 * time.Millisecond

// Event is an event of a GPU (nvmlEventData_t).
type Event struct {
	Device *Device
	// Type is one of Event*.
	Type uint64
	// Data is the XID of EventXID, and 0 otherwise.
	Data uint64
	// GPUInstance and ComputeInstance are the affected instances; 0xffffffff for the whole GPU.
	GPUInstance, ComputeInstance uint32
}

// EventSet collects the events of the GPUs registered with it (nvmlEventSet_t).
type EventSet struct {
	node *Node

	mu   sync.Mutex
	regs []registration // by GPU index
}

// registration is a GPU that an event set watches.
type registration struct {
	device *Device
	types  uint64
	seen   uint64 // Seq of the last event seen
	lost   bool   // its loss was reported
}

// EventSetCreate makes an event set (nvmlEventSetCreate).
func (n *Node) EventSetCreate() (*EventSet, error) {
	if err := n.enter("nvmlEventSetCreate", -1); err != nil {
		return nil, err
	}
	return &EventSet{node: n}, nil
}

// SupportedEventTypes is the mask of events the GPU has (nvmlDeviceGetSupportedEventTypes).
func (d *Device) SupportedEventTypes() (uint64, error) {
	return supportedEvents, d.node.enter("nvmlDeviceGetSupportedEventTypes", d.index)
}

// RegisterEvents makes a set collect events of the GPU from now on (nvmlDeviceRegisterEvents).
func (d *Device) RegisterEvents(types uint64, set *EventSet) error {
	const call = "nvmlDeviceRegisterEvents"
	st, err := d.load(call)
	if err != nil {
		return err
	}
	if types&^supportedEvents != 0 {
		return fail(call, CodeNotSupported, "events %#x of %#x are not supported", types&^supportedEvents, types)
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	i, found := slices.BinarySearchFunc(set.regs, d.index, func(r registration, index int) int { return r.device.index - index })
	if found {
		set.regs[i].types |= types
		return nil
	}
	set.regs = slices.Insert(set.regs, i, registration{device: d, types: types, seen: st.LastEvent})
	return nil
}

// Wait returns the next event, waiting up to timeout (nvmlEventSetWait_v2). For a lost GPU it fails once with GPU_IS_LOST, without
// naming the GPU, like NVML.
func (s *EventSet) Wait(timeout time.Duration) (Event, error) {
	const call = "nvmlEventSetWait_v2"
	if err := s.node.enter(call, -1); err != nil {
		return Event{}, err
	}
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		e, found, err := s.next(call)
		if found || err != nil {
			return e, err
		}
		poll := time.NewTimer(eventPoll)
		select {
		case <-deadline.C:
			poll.Stop()
			return Event{}, fail(call, CodeTimeout, "no event in %v", timeout)
		case <-poll.C:
		}
	}
}

func (s *EventSet) next(call string) (Event, bool, error) {
	node, err := s.node.state.load()
	if err != nil {
		return Event{}, false, fail(call, CodeUnknown, "%v", err)
	}
	if node.Unloaded {
		return Event{}, false, fail(call, CodeDriverNotLoaded, "the driver of the simulated node was unloaded")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.regs {
		r := &s.regs[i]
		st, err := s.node.gpus[r.device.index].load()
		if err != nil {
			return Event{}, false, fail(call, CodeUnknown, "%v", err)
		}
		for _, e := range st.Events {
			if e.Seq <= r.seen {
				continue
			}
			r.seen = e.Seq
			if e.Type&r.types != 0 {
				return Event{Device: r.device, Type: e.Type, Data: e.Data, GPUInstance: e.GPUInstance, ComputeInstance: e.ComputeInstance}, true, nil
			}
		}
		lost := slices.Contains(node.Lost, r.device.index)
		if lost && !r.lost {
			r.lost = true
			return Event{}, false, fail(call, CodeGPUIsLost, "a GPU fell off the bus")
		}
		r.lost = lost
	}
	return Event{}, false, nil
}

// Free ends an event set (nvmlEventSetFree).
func (s *EventSet) Free() error {
	return s.node.enter("nvmlEventSetFree", -1)
}
