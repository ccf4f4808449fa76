// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"strconv"
)

// Class is what an XID means for a GPU, and when it is over.
type Class int

// The classes.
const (
	// Counted: work was at fault, or it is a mere notice. Nothing is done.
	Counted Class = iota + 1
	// Passing: the GPU may go on. It is over after a Probation without another one, unless the driver wants a recovery
	// action.
	Passing
	// Lasting: the GPU needs something done to it. It is over when the driver wants no recovery action and a Probation
	// has passed without another one, or when the GPU is back after it was gone. Where a driver tells no recovery
	// action, that or a restart of the plugin ends it.
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
	// What happened, in a few words.
	What string
}

// table has the XIDs that are known, in ascending order. What NVIDIA answers with "restart the application" or "ignore" is
// Counted, what it answers with a reset or more is Lasting (NVIDIA, "Analyzing Xid Errors with the Xid Catalog"). 92 and
// 94 leave a GPU usable, but may be the first of many: they are Passing. 109 is for a reset by the catalog, and Counted
// since NVIDIA's device plugin has always taken it for a program's; where a reset is meant, the driver wants one besides.
var table = []XIDs{
	{8, 8, Counted, "a channel stood still"},
	{11, 11, Counted, "bad commands"},
	{13, 13, Counted, "graphics engine exception"},
	{25, 25, Counted, "bad commands"},
	{31, 31, Counted, "memory page fault"},
	{32, 32, Counted, "bad commands"},
	{37, 38, Counted, "driver firmware error"},
	{39, 41, Counted, "copy engine exception"},
	{43, 43, Counted, "a program's work was stopped"},
	{44, 44, Counted, "fault during a context switch"},
	{45, 45, Counted, "a program's work was removed"},
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
	{93, 93, Counted, "many writes to the board's own storage"},
	{94, 94, Passing, "contained memory error"},
	{95, 95, Lasting, "uncontained memory error"},
	{96, 98, Counted, "video decoder exception"},
	{99, 105, Counted, "JPEG engine exception"},
	{106, 107, Counted, "test message"},
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
	{144, 150, Lasting, "NVLink error"},
	{151, 151, Lasting, "key rotation error"},
	{154, 154, Counted, "the recovery action changed"},
	{155, 155, Lasting, "NVLink error"},
	{156, 156, Lasting, "a resource was retired"},
	{158, 158, Lasting, "fatal timeout"},
	{160, 161, Counted, "a channel was retired"},
	{162, 165, Counted, "notice about power smoothing"},
	{167, 167, Lasting, "fatal PCIe timeout"},
	{168, 168, Lasting, "less memory than there was"},
	{169, 169, Lasting, "a microcontroller halted"},
	{171, 172, Lasting, "uncorrectable memory error"},
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

// unknown is what an XID that is not in the table is taken for.
var unknown = XIDs{Class: Passing, What: "unknown error"}

// find returns what is known of an XID.
func find(xid int) XIDs {
	for _, x := range table {
		if x.First <= xid && xid <= x.Last {
			return x
		}
	}
	return unknown
}
