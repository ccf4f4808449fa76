// SPDX-License-Identifier: Apache-2.0

package gpu

import "strconv"

// RecoveryAction is the action that the driver requests before a GPU can be used again (NVML_GPU_RECOVERY_ACTION_*).
type RecoveryAction int

// The actions.
const (
	// RecoveryUnknown: the driver does not report.
	RecoveryUnknown       RecoveryAction = -1
	RecoveryNone          RecoveryAction = 0
	RecoveryReset         RecoveryAction = 1
	RecoveryReboot        RecoveryAction = 2
	RecoveryDrainP2P      RecoveryAction = 3
	RecoveryDrainAndReset RecoveryAction = 4
	RecoveryIMEXDomain    RecoveryAction = 5
	RecoveryBusReset      RecoveryAction = 6
	RecoverySystemReboot  RecoveryAction = 7
)

// Recovery is what the driver reports about errors that are not over.
type Recovery struct {
	Action RecoveryAction
	// RemapFailed is whether a row of the GPU's memory could not be remapped; nil if the driver does not report it now, as in MIG mode.
	RemapFailed *bool
}

// EventKind is the kind of an Event.
type EventKind int

// The kinds (nvmlEventType*).
const (
	// MIGChanged: GPU instances were created or destroyed, or the MIG mode has changed.
	MIGChanged EventKind = iota + 1
	// XIDReported: the driver reported a numbered error.
	XIDReported
	// DoubleBitECC: an uncorrectable memory error.
	DoubleBitECC
	// GPUUnavailable: the GPU does not work.
	GPUUnavailable
	// RecoveryChanged: the recovery action has changed.
	RecoveryChanged
)

// Event is an event of a GPU reported by its driver.
type Event struct {
	Kind EventKind
	// PCI is the GPU's address; nil if the driver does not identify the GPU.
	PCI *PCIAddress
	// XID is the number of XIDReported (NVIDIA, "XID errors"); 999 if the driver has none.
	XID int
	// GI is the affected GPU instance; nil for the whole GPU.
	GI *int
}

// String formats an event for the log.
func (e Event) String() string {
	s := map[EventKind]string{
		MIGChanged: "MIG changed", DoubleBitECC: "double-bit ECC error", GPUUnavailable: "GPU unavailable",
		RecoveryChanged: "recovery action changed", XIDReported: "XID " + strconv.Itoa(e.XID),
	}[e.Kind]
	if e.GI != nil {
		s += " in GPU instance " + strconv.Itoa(*e.GI)
	}
	return s
}
