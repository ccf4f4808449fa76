// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// UsedKey is a device of a claim, "namespace/name".
type UsedKey struct{ Claim, Device string }

// Used is what a claim does with a device, as the plugin's metrics say; absent is what they do not.
type Used struct {
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	// SMActive and DRAMActive are 0 to 1, of a share as of the whole GPU. Source is "gpm", "process" or "device".
	SMActive   *float64 `json:"smActive,omitempty"`
	DRAMActive *float64 `json:"dramActive,omitempty"`
	Source     string   `json:"source,omitempty"`
	// EnergyJoules is the claim's part of the GPU's energy since the plugin's start.
	EnergyJoules *float64   `json:"energyJoules,omitempty"`
	LastActive   *time.Time `json:"lastActive,omitempty"`
}

// idleBelow is the activity of a claim that is idle, in percent as they are printed.
const idleBelow = 1

// IdleSince is since when a claim does not use the device; false if it does, or that is not known.
func (u *Used) IdleSince() (time.Time, bool) {
	if u == nil || u.SMActive == nil || *u.SMActive*100 >= idleBelow || u.LastActive == nil {
		return time.Time{}, false
	}
	return *u.LastActive, true
}

// String is such as "6144 MiB, SM 40%", or "0 MiB, idle since 2026-01-02 15:04 UTC"; empty if nothing is known.
func (u *Used) String() string {
	if u == nil {
		return ""
	}
	var parts []string
	if u.MemoryBytes != nil {
		parts = append(parts, fmt.Sprintf("%d MiB", *u.MemoryBytes>>20))
	}
	if at, idle := u.IdleSince(); idle {
		parts = append(parts, "idle since "+at.UTC().Format("2006-01-02 15:04")+" UTC")
	} else if u.SMActive != nil {
		parts = append(parts, fmt.Sprintf("SM %.0f%%", *u.SMActive*100))
	}
	return strings.Join(parts, ", ")
}

// claimOf is a claim of a device, with what it uses of it.
func (h *Hardware) claimOf(r *records.Record, d *records.Device) Claim {
	c := claimOf(r, d)
	if u, ok := h.Used[UsedKey{c.Claim, d.Device}]; ok && !d.AdminAccess {
		c.Used = &u
	}
	return c
}

// isUsed reports whether it is known what claims use.
func (v *View) isUsed() bool {
	for i := range v.GPUs {
		for j := range v.GPUs[i].Shapes {
			for k := range v.GPUs[i].Shapes[j].Claims {
				if v.GPUs[i].Shapes[j].Claims[k].Used != nil {
					return true
				}
			}
		}
	}
	return false
}

// withUsed adds a column of what claims use to rows of claims, if anything is known of it.
func (v *View) withUsed(rows [][]string, used []string) [][]string {
	if !v.isUsed() {
		return rows
	}
	const at = 4 // before the details
	for i := range rows {
		text := "USED"
		if i > 0 {
			text = orDash(used[i-1])
		}
		rows[i] = append(rows[i][:at:at], append([]string{text}, rows[i][at:]...)...)
	}
	return rows
}
