// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
)

// Quirk is a way in which a driver may differ from the simulated one. If documents leave a behaviour open, code must handle both.
type Quirk string

// The quirks.
const (
	// QuirkModeWipesInstances: leaving MIG mode destroys idle GPU instances and succeeds. nvml.h promises IN_USE of
	// nvmlDeviceSetMigMode only if unbinding the GPU from its clients fails, not for unused instances.
	QuirkModeWipesInstances Quirk = "mode-wipes-instances"
	// QuirkFirstInstanceInUse: clients of a GPU make the creation of its first GPU instance fail with IN_USE, instead of the change
	// of its mode, as with drivers on boards that need no reset (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c,
	// kmigmgrSetMIGState).
	QuirkFirstInstanceInUse Quirk = "first-instance-in-use"
	// QuirkUUIDFromMemory: nvmlDeviceGetUUID returns a cached UUID for a GPU that fell off the bus. nvml.h promises GPU_IS_LOST
	// only for calls that reach the board.
	QuirkUUIDFromMemory Quirk = "uuid-from-memory"
	// QuirkMinorChanges: a change of the MIG mode gives the GPU another minor number (nvml.h, nvmlDeviceSetMigMode: "the
	// attributes associated with the device, such as minor number, might change").
	QuirkMinorChanges Quirk = "minor-changes"
	// QuirkWrongCounts: profiles report that one instance fits, whatever their placements allow, as some drivers do for the
	// A30.
	QuirkWrongCounts Quirk = "wrong-counts"
	// QuirkFabricAfterMIG: a GPU that leaves MIG mode has to register with the NVLink fabric again, which takes a while: the driver
	// suspends the fabric probe while GPU instances exist (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c,
	// gpuFabricProbeSuspend).
	QuirkFabricAfterMIG Quirk = "fabric-after-mig"
	// QuirkResetTogether: GPUs connected by NVLinks can only be reset by one command, as on NVSwitch systems with A100 without
	// Fabric Manager: "All PEER connected GPUs must be reset in same command" (nvidia-smi's manual, --gpu-reset).
	QuirkResetTogether Quirk = "reset-together"
	// QuirkVMNeedsReset: with a GPU passed through to a guest, even boards that otherwise change their MIG mode without a reset
	// need one: "VM reboot is required" (nvml.h, nvmlDeviceSetMigMode, which names no particular board).
	QuirkVMNeedsReset Quirk = "vm-needs-reset"
	// QuirkModeInMIG: a GPU in MIG mode returns its previous compute mode, as RM's query does (open-gpu-kernel-modules 595.45.04,
	// subdevice_ctrl_gpu_kernel.c: QueryComputeModeRules does not look at MIG mode); NVML's behaviour is unknown.
	QuirkModeInMIG Quirk = "compute-mode-in-mig"
	// QuirkFewerProfiles: the driver knows no profiles with all or none of the media engines. NVML_GPU_INSTANCE_PROFILE_COUNT was 0xD
	// (github.com/vllm-project/vllm v0.10.1, vllm/third_party/pynvml.py) before they came; it is 0x12 in go-nvml v0.13.4-0.
	QuirkFewerProfiles Quirk = "fewer-profiles"
	// QuirkFewerInstances: at most three GPU instances can be created, despite free placements and capacity. "QA observed only 3
	// creatable 1g instances on a 61x Station even though Free/Total reported 7" (NVIDIA dgx-spark-playbooks, mig-configure).
	QuirkFewerInstances Quirk = "fewer-instances"
	// QuirkDRMHolds: nvidia_drm, which is not listed as a process, prevents resets of boards: "In use by another client"
	// (https://github.com/NVIDIA/mig-parted/issues/181, on A100).
	QuirkDRMHolds Quirk = "drm-holds"
	// QuirkListsInMIGMode: profiles and placements are listed only in MIG mode: "older drivers (e.g., 535) that don't support
	// querying MIG profiles when MIG mode is disabled" (github.com/NVIDIA/mig-parted, pkg/mig/discovery/discovery.go).
	QuirkListsInMIGMode Quirk = "lists-in-mig-mode"
)

// Quirks lists all there are.
func Quirks() []Quirk {
	return []Quirk{
		QuirkModeInMIG, QuirkDRMHolds, QuirkFabricAfterMIG, QuirkFewerInstances, QuirkFewerProfiles, QuirkFirstInstanceInUse,
		QuirkListsInMIGMode, QuirkMinorChanges, QuirkModeWipesInstances, QuirkResetTogether, QuirkUUIDFromMemory, QuirkVMNeedsReset,
		QuirkWrongCounts,
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

// has reports whether the node's driver has a quirk; false if unreadable.
func (c *core) has(q Quirk) bool {
	st, err := c.state.load()
	return err == nil && slices.Contains(st.Quirks, q)
}

// busyForMode describes the obstacle to changing the mode of a GPU; empty for none. Quirks take precedence.
func (d MIG) busyForMode(st *gpuState, enable bool) string {
	if enable && !d.board.MIG.ModeNeedsReset && d.node.has(QuirkFirstInstanceInUse) {
		return "" // checked later
	}
	if !enable && d.node.has(QuirkModeWipesInstances) {
		return st.users(func(Client) bool { return true })
	}
	return st.busy()
}

// firstInUse is the quirk's IN_USE for the first GPU instance of a GPU with clients.
func (d MIG) firstInUse(call string, st *gpuState) error {
	if len(st.Instances) > 0 || !d.node.has(QuirkFirstInstanceInUse) {
		return nil
	}
	if who := st.users(func(Client) bool { return true }); who != "" {
		return fail(call, CodeInUse, "GPU %d is in use by %s", d.index, who)
	}
	return nil
}
