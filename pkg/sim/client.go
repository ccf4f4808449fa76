// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Clients are the processes that use the GPUs of a node.
type Clients struct{ *core }

// Add lets a process use a GPU, as a CUDA program or a monitoring agent does.
func (cs *Clients) Add(index int, c Client) error {
	if err := cs.checkIndex(index); err != nil {
		return err
	}
	if c.PID <= 0 {
		return fmt.Errorf("add client: PID %d", c.PID)
	}
	return cs.gpus[index].update(func(st *gpuState) error {
		if err := st.checkClient(c); err != nil {
			return fmt.Errorf("add client to GPU %d: %w", index, err)
		}
		if err := st.checkMode(c); err != nil {
			return fmt.Errorf("add client to GPU %d: %w", index, err)
		}
		st.account(cs.devices[index].board, cs.microseconds())
		if at := slices.IndexFunc(st.Clients, func(o Client) bool { return o.PID == c.PID }); at >= 0 && c.Load == nil {
			c.Load = st.Clients[at].Load
		}
		st.Clients = slices.DeleteFunc(st.Clients, func(o Client) bool { return o.PID == c.PID })
		st.Clients = append(st.Clients, c)
		slices.SortFunc(st.Clients, func(a, b Client) int { return cmp.Compare(a.PID, b.PID) })
		return nil
	})
}

// FabricPending reports whether a GPU is not registered with its NVLink fabric yet: until then CUDA programs cannot use it, not
// even a single GPU of a virtual machine (kernel-open/nvidia-uvm/uvm_gpu.c, init_gpu: FABRIC_NOT_READY). Before Hopper that is so on a
// node with NVSwitches while Fabric Manager does not run, except in MIG mode (nv_gpu_ops.c, _gpuGetFabricStatus).
func (cs *Clients) FabricPending(index int) (bool, error) {
	st, err := cs.gpus[index].load()
	if err != nil {
		return false, fmt.Errorf("read GPU %d: %w", index, err)
	}
	node, err := cs.state.load()
	if err != nil {
		return false, err
	}
	unmanaged := node.NoFabricManager && !st.MIG && cs.devices[index].board.ComputeCapability[0] < 9
	return unmanaged || st.FabricState == FabricNotStarted || st.FabricState == FabricInProgress, nil
}

// checkClient refuses a client of a partition that does not exist.
func (st *gpuState) checkClient(c Client) error {
	if c.GPUInstance < 0 {
		return nil
	}
	gi := st.findInstance(c.GPUInstance)
	if gi == nil {
		return fmt.Errorf("no GPU instance %d", c.GPUInstance)
	}
	if c.Leaked {
		return nil
	}
	if gi.findCompute(c.ComputeInstance) == nil {
		return fmt.Errorf("no compute instance %d in GPU instance %d", c.ComputeInstance, c.GPUInstance)
	}
	return nil
}

// checkMode rejects a client that the compute mode excludes from the GPU or the partition.
func (st *gpuState) checkMode(c Client) error {
	mode := st.ComputeMode
	if c.Leaked {
		return nil
	}
	if c.GPUInstance >= 0 {
		mode = st.findInstance(c.GPUInstance).findCompute(c.ComputeInstance).ComputeMode
	}
	switch mode {
	case ModeProhibited:
		return fail("", CodeNoPermission, "the compute mode is PROHIBITED")
	case ModeExclusiveProcess:
		others := st.users(func(o Client) bool {
			return o.PID != c.PID && o.GPUInstance == c.GPUInstance && o.ComputeInstance == c.ComputeInstance
		})
		if others != "" {
			return fail("", CodeInUse, "the compute mode is EXCLUSIVE_PROCESS, and it is in use by %s", others)
		}
	}
	return nil
}

// errNoClient means that a process does not use the GPU.
var errNoClient = errors.New("not found")

// Remove ends the use of a GPU by a process.
func (cs *Clients) Remove(index, pid int) error {
	if err := cs.checkIndex(index); err != nil {
		return err
	}
	return cs.gpus[index].update(func(st *gpuState) error {
		st.account(cs.devices[index].board, cs.microseconds())
		before := len(st.Clients)
		st.Clients = slices.DeleteFunc(st.Clients, func(c Client) bool { return c.PID == pid })
		if len(st.Clients) == before {
			return fmt.Errorf("remove client: %w: no process %d uses GPU %d", errNoClient, pid, index)
		}
		return nil
	})
}

// users lists the clients that match a filter: "process 71 (dcgm)"; empty for none.
func (st *gpuState) users(pick func(Client) bool) string {
	s := ""
	for _, c := range st.Clients {
		if !pick(c) {
			continue
		}
		if s != "" {
			s += ", "
		}
		s += fmt.Sprintf("process %d (%s)", c.PID, c.Name)
	}
	return s
}

// ProcessName is the name of a client or of any running process (nvmlSystemGetProcessName).
func (n *Node) ProcessName(pid int) (string, error) {
	const call = "nvmlSystemGetProcessName"
	if err := n.enter(call, -1); err != nil {
		return "", err
	}
	for i := range n.gpus {
		st, err := n.gpus[i].load()
		if err != nil {
			return "", fail(call, CodeUnknown, "%v", err)
		}
		for _, c := range st.Clients {
			if c.PID == pid {
				return c.Name, nil
			}
		}
	}
	command, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return "", fail(call, CodeNotFound, "no process %d", pid)
	}
	name, _, _ := strings.Cut(string(command), "\x00")
	return name, nil
}
