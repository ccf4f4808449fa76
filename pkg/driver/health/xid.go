// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"strconv"
)

// Class is the effect of an XID on the health of a GPU.
type Class int

// The classes.
const (
	// Counted XIDs are application faults or notices. They have no effect.
	Counted Class = iota + 1
	// Passing XIDs end after a Probation without another one, unless the driver requests a recovery action.
	Passing
	// Lasting XIDs need a recovery action. They end when the driver requests none and a Probation has passed without another
	// one, or when a lost GPU returns. With a driver that reports no recovery action, only the latter or a restart of the
	// plugin ends them.
	Lasting
)

// String is the class in the documentation's words.
func (c Class) String() string {
	return map[Class]string{Counted: "counted", Passing: "passing", Lasting: "lasting"}[c]
}

// XIDs is a range of numbers of one meaning.
type XIDs struct {
	First, Last int
	Class       Class
	// What is a short description.
	What string
}

// table contains the known XIDs in ascending order. XIDs for which NVIDIA recommends "restart the application" or "ignore"
// are Counted, those for which it recommends a reset or more are Lasting (NVIDIA, "Analyzing Xid Errors with the Xid
// Catalog"). 92 and 94 leave a GPU usable but may recur, so they are Passing. The catalog recommends a reset for 109, but
// NVIDIA's device plugin treats it as an application fault, so it is Counted; if a reset is needed, the driver requests one. Of 144
// to 147 and 149 some subcodes, which events do not have, are to be ignored, such as corrected errors: those are Passing. 173 to
// 176 are in the driver's list alone (open-gpu-kernel-modules 595.45.04, nverror.h).
var table = []XIDs{
	{8, 8, Counted, "channel timeout"},
	{11, 11, Counted, "bad commands"},
	{13, 13, Counted, "graphics engine exception"},
	{25, 25, Counted, "bad commands"},
	{31, 31, Counted, "memory page fault"},
	{32, 32, Counted, "bad commands"},
	{37, 38, Counted, "driver firmware error"},
	{39, 41, Counted, "copy engine exception"},
	{43, 43, Counted, "an application's work was stopped"},
	{44, 44, Counted, "fault during a context switch"},
	{45, 45, Counted, "an application's work was removed"},
	{46, 46, Lasting, "the GPU stopped processing"},
	{48, 48, Lasting, "double-bit ECC error"},
	{54, 54, Lasting, "auxiliary power is not connected"},
	{60, 60, Counted, "video processor exception"},
	{62, 62, Lasting, "a microcontroller halted"},
	{63, 63, Counted, "memory was remapped or retired"},
	{64, 64, Lasting, "memory could not be remapped or retired"},
	{66, 67, Counted, "illegal access by the driver"},
	{68, 68, Counted, "video decoder exception"},
	{69, 69, Counted, "graphics engine class error"},
	{70, 72, Counted, "copy engine exception"},
	{74, 74, Lasting, "NVLink error"},
	{75, 77, Counted, "copy engine exception"},
	{79, 79, Lasting, "the GPU has fallen off the bus"},
	{80, 80, Counted, "bad commands"},
	{82, 82, Counted, "JPEG engine exception"},
	{83, 84, Counted, "video decoder exception"},
	{85, 85, Counted, "copy engine exception"},
	{86, 86, Counted, "optical flow engine exception"},
	{88, 89, Counted, "video decoder exception"},
	{92, 92, Passing, "many single-bit ECC errors"},
	{93, 93, Counted, "many writes to the board's flash memory"},
	{94, 94, Passing, "contained memory error"},
	{95, 95, Lasting, "uncontained memory error"},
	{96, 98, Counted, "video decoder exception"},
	{99, 105, Counted, "JPEG engine exception"},
	{106, 107, Counted, "test message"},
	{108, 108, Counted, "notice"},
	{109, 109, Counted, "context switch timed out"},
	{110, 110, Lasting, "security fault"},
	{119, 120, Lasting, "GPU system processor error"},
	{121, 121, Counted, "chip-to-chip link error"},
	{126, 135, Counted, "copy engine exception"},
	{136, 136, Lasting, "NVLink training failed"},
	{137, 137, Counted, "NVLink privilege error"},
	{139, 139, Counted, "optical flow engine exception"},
	{140, 140, Lasting, "unrecovered ECC error"},
	{141, 141, Counted, "CUDA fast path error"},
	{143, 143, Lasting, "GPU initialization error"},
	{144, 147, Passing, "NVLink error"},
	{148, 148, Lasting, "NVLink error"},
	{149, 149, Passing, "NVLink error"},
	{150, 150, Lasting, "NVLink error"},
	{151, 151, Lasting, "key rotation error"},
	{152, 153, Counted, "notice"},
	{154, 154, Counted, "the recovery action changed"},
	{155, 155, Lasting, "NVLink error"},
	{156, 156, Lasting, "a resource was retired"},
	{157, 157, Counted, "notice"},
	{158, 158, Lasting, "fatal timeout"},
	{160, 161, Counted, "a channel was retired"},
	{162, 165, Counted, "notice about power smoothing"},
	{166, 166, Lasting, "secure NVLink error"},
	{167, 167, Lasting, "fatal PCIe timeout"},
	{168, 168, Lasting, "reduced memory capacity"},
	{169, 169, Lasting, "a microcontroller halted"},
	{170, 170, Lasting, "secure NVLink error"},
	{171, 172, Lasting, "uncorrectable memory error"},
	{173, 173, Lasting, "fatal chip-to-chip link error"},
	{174, 174, Counted, "an application's work was removed"},
	{175, 175, Lasting, "memory subsystem error"},
	{176, 176, Counted, "corrected PCIe error"},
}

// KnownXIDs lists the XIDs of the documentation, in ascending order.
func KnownXIDs() []XIDs { return slices.Clone(table) }

// Numbers is the range as text: "31", or "37 to 38".
func (x XIDs) Numbers() string {
	if x.First == x.Last {
		return strconv.Itoa(x.First)
	}
	return fmt.Sprintf("%d to %d", x.First, x.Last)
}

// unknown is the entry of XIDs outside of the table.
var unknown = XIDs{Class: Passing, What: "unknown error"}

// find returns the entry of an XID.
func find(xid int) XIDs {
	for _, x := range table {
		if x.First <= xid && xid <= x.Last {
			return x
		}
	}
	return unknown
}
