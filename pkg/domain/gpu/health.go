// SPDX-License-Identifier: Apache-2.0

package gpu

import "strconv"

// RecoveryAction is what has to be done before a GPU can be used again, by its driver's word
// (NVML_GPU_RECOVERY_ACTION_*).
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

// EventKind is what an Event is about.
type EventKind int

// The kinds (nvmlEventType*).
const (
	// MIGChanged: GPU instances were made or destroyed, or the MIG mode was changed.
	MIGChanged EventKind = iota + 1
	// XIDReported: the driver met an error that has a number.
	XIDReported
	// DoubleBitECC: memory was wrong and could not be corrected.
	DoubleBitECC
	// GPUUnavailable: the GPU does not work.
	GPUUnavailable
	// RecoveryChanged: the recovery action is another one.
	RecoveryChanged
)

// Event is something that a driver reports of a GPU.
type Event struct {
	Kind EventKind
	// PCI is the GPU's; nil where the driver does not report which GPU it is.
	PCI *PCIAddress
	// XID is the number of XIDReported (NVIDIA, "XID errors"); 999 where the driver has none for it.
	XID int
	// GI is the GPU instance that it is about; nil for the whole GPU.
	GI *int
}

// String words an event for the log.
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
