// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fault makes calls slow or fail.
type Fault struct {
	// ID is assigned when the fault is injected.
	ID int `json:"id"`
	// GPU is the index of the affected GPU; -1 for calls on any GPU, and on none.
	GPU int `json:"gpu"`
	// Call is the NVML function, or "*" for every one, or one of the names that NVML does not have.
	Call string `json:"call"`
	// Delay before the call continues.
	Delay time.Duration `json:"delay,omitempty"`
	// Hang blocks the call until the fault is cleared, like a driver waiting for a GPU that does not answer.
	Hang bool `json:"hang,omitempty"`
	// Code is the NVML error that the call returns; 0 to continue.
	Code int `json:"code,omitempty"`
	// Skip is the number of calls of each process to let through first.
	Skip int `json:"skip,omitempty"`
	// Times is the number of affected calls, of all processes together; 0 for no limit.
	Times int `json:"times,omitempty"`
}

// String describes the fault.
func (f Fault) String() string {
	s := fmt.Sprintf("#%d %s", f.ID, f.Call)
	if f.GPU >= 0 {
		s += fmt.Sprintf(" on GPU %d", f.GPU)
	}
	if f.Delay > 0 {
		s += " takes " + f.Delay.String()
	}
	if f.Hang {
		s += " hangs"
	}
	if f.Code != 0 {
		s += " returns " + CodeName(f.Code)
	}
	if f.Skip > 0 {
		s += fmt.Sprintf(", from call %d of a process", f.Skip+1)
	}
	if f.Times > 0 {
		s += fmt.Sprintf(", %d times", f.Times)
	}
	return s
}

// hits reports whether the fault affects that call on one of those GPUs.
func (f *Fault) hits(call string, gpus ...int) bool {
	all := f.Call == "*" && strings.HasPrefix(call, "nvml")
	return (all || f.Call == call) && (f.GPU < 0 || slices.Contains(gpus, f.GPU))
}

// Faults make calls slow or fail.
type Faults struct {
	*core
	sleep  func(time.Duration)
	passed sync.Map // ID of a fault -> *atomic.Int64, calls that it let through
}

// Inject adds a fault and returns its ID. Call may have any form that ResolveCall accepts.
func (fs *Faults) Inject(f Fault) (int, error) {
	call, err := ResolveCall(f.Call)
	if err != nil {
		return 0, fmt.Errorf("inject fault: %w", err)
	}
	if f.Delay < 0 || f.Skip < 0 || f.Times < 0 || f.Delay == 0 && f.Code == 0 && !f.Hang {
		return 0, fmt.Errorf("inject fault: %s does nothing, or has a negative number", f)
	}
	if f.GPU >= len(fs.devices) {
		return 0, fmt.Errorf("inject fault: no GPU %d: the node has %d", f.GPU, len(fs.devices))
	}
	f.Call = call
	err = fs.state.update(func(s *nodeState) error {
		s.LastFault++
		f.ID = s.LastFault
		s.Faults = append(s.Faults, f)
		return nil
	})
	return f.ID, err
}

// FailCall makes every call of an NVML function fail with an NVML code, on all GPUs.
func (fs *Faults) FailCall(call string, code int) error {
	_, err := fs.Inject(Fault{GPU: -1, Call: call, Code: code})
	return err
}

// FailNth makes the nth call from now (1 is the next) of an NVML function fail with an NVML code, once.
func (fs *Faults) FailNth(call string, nth, code int) error {
	_, err := fs.Inject(Fault{GPU: -1, Call: call, Code: code, Skip: nth - 1, Times: 1})
	return err
}

// HangCall makes every call of an NVML function on a GPU hang until Clear.
func (fs *Faults) HangCall(index int, call string) error {
	_, err := fs.Inject(Fault{GPU: index, Call: call, Hang: true})
	return err
}

// Clear removes faults, restores lost and absent GPUs, ends recovery actions, and resets fabric, NVLinks and virtualization to the
// node's model; for one GPU, or for all and none (-1). What is node-wide, confidential computing and the end of Fabric Manager, ends only
// with -1.
func (fs *Faults) Clear(index int) error {
	hardware := Hardware{fs.core, fs}
	for i := range fs.gpus {
		if index >= 0 && index != i {
			continue
		}
		if err := hardware.restore(i); err != nil {
			return fmt.Errorf("clear faults of GPU %d: %w", i, err)
		}
	}
	return fs.state.update(func(s *nodeState) error {
		of := func(i int) bool { return index < 0 || i == index }
		s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { return of(f.GPU) })
		s.Lost = slices.DeleteFunc(s.Lost, of)
		s.LinksDown = slices.DeleteFunc(s.LinksDown, of)
		if index >= 0 {
			return nil
		}
		s.Confidential = ConfidentialOff
		return fs.setFabricManager(s, true)
	})
}

// apply applies the faults to a call: first all delays, then the first error.
func (fs *Faults) apply(st *nodeState, call string, gpus ...int) error {
	var failed error
	for i := range st.Faults {
		f := &st.Faults[i]
		if !f.hits(call, gpus...) || failed != nil && f.Code != 0 || !fs.due(f) {
			continue
		}
		if f.Delay > 0 {
			fs.sleep(f.Delay)
		}
		if f.Hang {
			fs.hang(f.ID)
		}
		if f.Code != 0 {
			failed = fail(call, f.Code, "injected fault #%d", f.ID)
		}
	}
	return failed
}

// hang returns once a fault is cleared.
func (fs *Faults) hang(id int) {
	const look = 5 * time.Millisecond
	for {
		st, err := fs.state.load()
		if err != nil || !slices.ContainsFunc(st.Faults, func(f Fault) bool { return f.ID == id }) {
			return
		}
		fs.sleep(look)
	}
}

// Apply applies faults to a program's work on some GPUs, under one of the names that NVML does not have.
func (fs *Faults) Apply(call string, gpus ...int) error {
	fs.calls.begin(call, -1)
	st, err := fs.state.load()
	if err != nil {
		return err
	}
	return fs.apply(st, call, gpus...)
}

// due counts a call that matches a fault, and reports whether the fault affects it.
func (fs *Faults) due(f *Fault) bool {
	if f.Skip > 0 {
		c, _ := fs.passed.LoadOrStore(f.ID, new(atomic.Int64))
		if c.(*atomic.Int64).Add(1) <= int64(f.Skip) {
			return false
		}
	}
	return f.Times == 0 || fs.spend(f.ID)
}

// spend consumes one of the times of a fault; false if none is left.
func (fs *Faults) spend(id int) bool {
	spent := false
	err := fs.state.update(func(s *nodeState) error {
		i := slices.IndexFunc(s.Faults, func(f Fault) bool { return f.ID == id })
		if i < 0 {
			return nil
		}
		spent = true
		if s.Faults[i].Times--; s.Faults[i].Times == 0 {
			s.Faults = slices.Delete(s.Faults, i, i+1)
		}
		return nil
	})
	return err == nil && spent
}
