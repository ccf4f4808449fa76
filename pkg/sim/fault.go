// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Fault makes calls slow or fail.
type Fault struct {
	// ID is given out when the fault is injected.
	ID int `json:"id"`
	// GPU is the index of the GPU whose calls are hit; -1 for calls of any GPU, and of none.
	GPU int `json:"gpu"`
	// Call is the NVML function, or "*" for every one, or one of the names that NVML does not have.
	Call string `json:"call"`
	// Delay before the call goes on.
	Delay time.Duration `json:"delay,omitempty"`
	// Hang keeps the call until the fault is cleared. What a driver does that waits for a GPU that does not answer.
	Hang bool `json:"hang,omitempty"`
	// Code is the NVML error that the call returns; 0 to let it go on.
	Code int `json:"code,omitempty"`
	// Skip lets so many calls of each process through first.
	Skip int `json:"skip,omitempty"`
	// Times is how many calls are hit, in all processes together; 0 for no end.
	Times int `json:"times,omitempty"`
}

// String says what the fault does.
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

// hits reports whether the fault is about that call on one of those GPUs.
func (f *Fault) hits(call string, gpus ...int) bool {
	all := f.Call == "*" && strings.HasPrefix(call, "nvml")
	return (all || f.Call == call) && (f.GPU < 0 || slices.Contains(gpus, f.GPU))
}

// Inject adds a fault and returns its ID. Call may be any spelling that ResolveCall takes.
func (n *Node) Inject(f Fault) (int, error) {
	call, err := ResolveCall(f.Call)
	if err != nil {
		return 0, fmt.Errorf("inject fault: %w", err)
	}
	if f.Delay < 0 || f.Skip < 0 || f.Times < 0 || f.Delay == 0 && f.Code == 0 && !f.Hang {
		return 0, fmt.Errorf("inject fault: %s does nothing, or has a negative number", f)
	}
	if f.GPU >= len(n.devices) {
		return 0, fmt.Errorf("inject fault: no GPU %d: the node has %d", f.GPU, len(n.devices))
	}
	f.Call = call
	err = n.state.update(func(s *nodeState) error {
		s.LastFault++
		f.ID = s.LastFault
		s.Faults = append(s.Faults, f)
		return nil
	})
	return f.ID, err
}

// FailCall makes every call of an NVML function fail with an NVML code, on all GPUs.
func (n *Node) FailCall(call string, code int) error {
	_, err := n.Inject(Fault{GPU: -1, Call: call, Code: code})
	return err
}

// FailNth makes the nth call from now (1 is the next) of an NVML function fail with an NVML code, once.
func (n *Node) FailNth(call string, nth, code int) error {
	_, err := n.Inject(Fault{GPU: -1, Call: call, Code: code, Skip: nth - 1, Times: 1})
	return err
}

// SlowCall makes every call of an NVML function take at least d, on all GPUs.
func (n *Node) SlowCall(call string, d time.Duration) error {
	_, err := n.Inject(Fault{GPU: -1, Call: call, Delay: d})
	return err
}

// HangCall makes every call of an NVML function on a GPU hang until ClearFaults.
func (n *Node) HangCall(index int, call string) error {
	_, err := n.Inject(Fault{GPU: index, Call: call, Hang: true})
	return err
}

// Lose makes a GPU fall off the bus: its calls return GPU_IS_LOST, and so does, once, an event set that watches it.
func (n *Node) Lose(index int) error {
	if err := n.checkIndex(index); err != nil {
		return err
	}
	return n.state.update(func(s *nodeState) error {
		if !slices.Contains(s.Lost, index) {
			s.Lost = append(s.Lost, index)
			slices.Sort(s.Lost)
		}
		return nil
	})
}

// Replace puts another GPU, of the same board, in the place of one.
func (n *Node) Replace(index int, uuid string) error {
	if err := n.checkIndex(index); err != nil {
		return err
	}
	return n.state.update(func(s *nodeState) error {
		if s.UUIDs == nil {
			s.UUIDs = map[int]string{}
		}
		s.UUIDs[index] = uuid
		return nil
	})
}

// ClearFaults removes faults, brings lost and absent GPUs back, ends recovery actions, and leaves fabric, NVLinks and
// virtualization to the node's model again; of one GPU, or of all and of none (-1).
func (n *Node) ClearFaults(index int) error {
	for i := range n.gpus {
		if index >= 0 && index != i {
			continue
		}
		if err := n.clearGPU(i); err != nil {
			return fmt.Errorf("clear faults of GPU %d: %w", i, err)
		}
	}
	return n.state.update(func(s *nodeState) error {
		of := func(i int) bool { return index < 0 || i == index }
		s.Faults = slices.DeleteFunc(s.Faults, func(f Fault) bool { return of(f.GPU) })
		s.Lost = slices.DeleteFunc(s.Lost, of)
		s.LinksDown = slices.DeleteFunc(s.LinksDown, of)
		return nil
	})
}

// clearGPU ends what is kept in the state of one GPU, and its absence, which moves files.
func (n *Node) clearGPU(index int) error {
	node, err := n.state.load()
	if err != nil {
		return err
	}
	if slices.Contains(node.Absent, index) {
		if err := n.SetAbsent(index, false); err != nil {
			return err
		}
	}
	st, err := n.gpus[index].load()
	if err != nil {
		return err
	}
	if st.Recovery != 0 {
		if err := n.SetRecoveryAction(index, 0); err != nil {
			return err
		}
	}
	if st.FabricState == 0 && st.Virtualization == VirtualizationNone {
		return nil
	}
	return n.gpus[index].update(func(st *gpuState) error {
		st.FabricState, st.FabricLooks, st.Virtualization = 0, 0, VirtualizationNone
		return nil
	})
}

// Faults lists the active faults, and the indexes of lost GPUs.
func (n *Node) Faults() (faults []Fault, lost []int, err error) {
	st, err := n.state.load()
	if err != nil {
		return nil, nil, err
	}
	return slices.Clone(st.Faults), slices.Clone(st.Lost), nil
}

// applyFaults lets the faults have their way with a call: first all delays, then the first error.
func (n *Node) applyFaults(st *nodeState, call string, gpus ...int) error {
	var failed error
	for i := range st.Faults {
		f := &st.Faults[i]
		if !f.hits(call, gpus...) || failed != nil && f.Code != 0 || !n.due(f) {
			continue
		}
		if f.Delay > 0 {
			n.sleep(f.Delay)
		}
		if f.Hang {
			n.hang(f.ID)
		}
		if f.Code != 0 {
			failed = fail(call, f.Code, "injected fault #%d", f.ID)
		}
	}
	return failed
}

// hang returns once a fault is cleared.
func (n *Node) hang(id int) {
	const look = 5 * time.Millisecond
	for {
		st, err := n.state.load()
		if err != nil || !slices.ContainsFunc(st.Faults, func(f Fault) bool { return f.ID == id }) {
			return
		}
		n.sleep(look)
	}
}

// ApplyFaults applies faults to a program that is about some GPUs, under one of the names that NVML does not
// have.
func (n *Node) ApplyFaults(call string, gpus ...int) error {
	n.counts[call].Add(1)
	st, err := n.state.load()
	if err != nil {
		return err
	}
	return n.applyFaults(st, call, gpus...)
}

// due counts a call that a fault is about, and reports whether it is one that the fault hits.
func (n *Node) due(f *Fault) bool {
	if f.Skip > 0 {
		c, _ := n.passed.LoadOrStore(f.ID, new(atomic.Int64))
		if c.(*atomic.Int64).Add(1) <= int64(f.Skip) {
			return false
		}
	}
	return f.Times == 0 || n.spend(f.ID)
}

// spend uses up one of the times of a fault; false if other calls have used them all.
func (n *Node) spend(id int) bool {
	spent := false
	err := n.state.update(func(s *nodeState) error {
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

// checkIndex refuses indexes of no GPU.
func (n *Node) checkIndex(index int) error {
	if index < 0 || index >= len(n.devices) {
		return fmt.Errorf("no GPU %d: the node has %d, numbered from 0", index, len(n.devices))
	}
	return nil
}
