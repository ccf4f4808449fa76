// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Quirk is a way in which a driver may differ from the one that is simulated otherwise. What documents leave open, code
// has to be right with either.
type Quirk string

// The quirks.
const (
	// QuirkModeWipesInstances: leaving MIG mode destroys idle GPU instances and succeeds. nvml.h promises IN_USE of
	// nvmlDeviceSetMigMode only where unbinding the GPU from its clients fails, not for instances that nobody uses.
	QuirkModeWipesInstances Quirk = "mode-wipes-instances"
	// QuirkFirstInstanceInUse: clients of a GPU are looked for when its first GPU instance is created, which is IN_USE
	// then, and not when the mode changes: so do drivers on boards that need no reset
	// (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c, kmigmgrSetMIGState).
	QuirkFirstInstanceInUse Quirk = "first-instance-in-use"
	// QuirkUUIDFromMemory: nvmlDeviceGetUUID answers from memory for a GPU that fell off the bus. nvml.h promises
	// GPU_IS_LOST only of calls that reach the board.
	QuirkUUIDFromMemory Quirk = "uuid-from-memory"
	// QuirkMinorChanges: a change of the MIG mode gives the GPU another minor number (nvml.h, nvmlDeviceSetMigMode: "the
	// attributes associated with the device, such as minor number, might change").
	QuirkMinorChanges Quirk = "minor-changes"
	// QuirkWrongCounts: profiles report that one instance fits, whatever their placements allow, as some drivers do for the
	// A30.
	QuirkWrongCounts Quirk = "wrong-counts"
	// QuirkFabricAfterMIG: a GPU that leaves MIG mode registers with the NVLink fabric anew, which takes a while: the
	// driver suspends the fabric probe while GPU instances exist (open-gpu-kernel-modules 595.45.04,
	// kernel_mig_manager.c, gpuFabricProbeSuspend).
	QuirkFabricAfterMIG Quirk = "fabric-after-mig"
	// QuirkResetTogether: GPUs that NVLinks join are reset by one command or not at all, as on NVSwitch systems with A100 while
	// no Fabric Manager runs: "All PEER connected GPUs must be reset in same command" (nvidia-smi's manual, --gpu-reset).
	QuirkResetTogether Quirk = "reset-together"
	// QuirkVMNeedsReset: in a guest that a GPU is passed through to, boards that need no reset for their MIG mode elsewhere need one:
	// "VM reboot is required" (nvml.h, nvmlDeviceSetMigMode, which says so of no board in particular).
	QuirkVMNeedsReset Quirk = "vm-needs-reset"
	// QuirkModeInMIG: a GPU in MIG mode answers with the compute mode from before, as RM's query does (open-gpu-kernel-modules
	// 595.45.04, subdevice_ctrl_gpu_kernel.c: QueryComputeModeRules does not look at MIG mode); what NVML makes of it is not known.
	QuirkModeInMIG Quirk = "compute-mode-in-mig"
	// QuirkFewerInstances: no more than three GPU instances are created, whatever placements and capacity say. "QA observed only 3
	// creatable 1g instances on a 61x Station even though Free/Total reported 7" (NVIDIA dgx-spark-playbooks, mig-configure).
	QuirkFewerInstances Quirk = "fewer-instances"
	// QuirkDRMHolds: nvidia_drm, which no list of processes shows, keeps boards from being reset: "In use by another client"
	// (https://github.com/NVIDIA/mig-parted/issues/181, on A100).
	QuirkDRMHolds Quirk = "drm-holds"
	// QuirkListsInMIGMode: profiles and placements are listed in MIG mode only: "older drivers (e.g., 535) that don't support querying
	// MIG profiles when MIG mode is disabled" (github.com/NVIDIA/mig-parted, pkg/mig/discovery/discovery.go).
	QuirkListsInMIGMode Quirk = "lists-in-mig-mode"
)

// Quirks lists all there are.
func Quirks() []Quirk {
	return []Quirk{
		QuirkModeInMIG, QuirkDRMHolds, QuirkFabricAfterMIG, QuirkFewerInstances, QuirkFirstInstanceInUse, QuirkListsInMIGMode,
		QuirkMinorChanges, QuirkModeWipesInstances, QuirkResetTogether, QuirkUUIDFromMemory, QuirkVMNeedsReset, QuirkWrongCounts,
	}
}

// SetQuirk switches a quirk of the node's driver on or off.
func (d Driver) SetQuirk(q Quirk, on bool) error {
	if !slices.Contains(Quirks(), q) {
		return fmt.Errorf("no quirk %q: want one of %q", q, Quirks())
	}
	return d.state.update(func(s *nodeState) error {
		s.Quirks = slices.DeleteFunc(s.Quirks, func(have Quirk) bool { return have == q })
		if on {
			s.Quirks = append(s.Quirks, q)
			slices.Sort(s.Quirks)
		}
		return nil
	})
}

// has reports whether the node's driver has a quirk. One that cannot be read has none.
func (c *core) has(q Quirk) bool {
	st, err := c.state.load()
	return err == nil && slices.Contains(st.Quirks, q)
}

// busyForMode words what keeps the mode of a GPU from changing; empty if nothing does. What quirks say goes first.
func (d MIG) busyForMode(st *gpuState, enable bool) string {
	if enable && !d.board.MIG.ModeNeedsReset && d.node.has(QuirkFirstInstanceInUse) {
		return "" // looked for later
	}
	if !enable && d.node.has(QuirkModeWipesInstances) {
		return st.users(func(Client) bool { return true })
	}
	return st.busy()
}

// firstInUse is IN_USE for the first GPU instance of a GPU that has clients, where a quirk says so.
func (d MIG) firstInUse(call string, st *gpuState) error {
	if len(st.Instances) > 0 || !d.node.has(QuirkFirstInstanceInUse) {
		return nil
	}
	if who := st.users(func(Client) bool { return true }); who != "" {
		return fail(call, CodeInUse, "GPU %d is in use by %s", d.index, who)
	}
	return nil
}
