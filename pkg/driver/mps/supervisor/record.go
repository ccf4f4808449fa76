// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// recordVersion changes when an older supervisor would misread a newer record.
const recordVersion = 1

// phase is the progress of a GPU.
type phase string

const (
	// starting: a daemon is being started. With Lost, it is a restart for claims.
	starting phase = "starting"
	running  phase = "running"
	// stopping: no claim is left, and all changes are being undone.
	stopping phase = "stopping"
)

// record is the stored state of a GPU or partition, written before the node is changed.
type record struct {
	Version int `json:"version"`
	// Boot identifies a boot of the node: MPS does not survive a reboot.
	Boot       string       `json:"boot"`
	Device     string       `json:"device"`
	PCI        string       `json:"pci"`
	UUID       string       `json:"uuid"`
	Phase      phase        `json:"phase"`
	Generation uint64       `json:"generation"`
	Settings   mps.Settings `json:"settings"`
	Claims     []types.UID  `json:"claims,omitempty"` // sorted
	// Owners are the DRA driver names of claims.
	Owners map[types.UID]string `json:"owners,omitempty"`
	// Lost are the claims whose daemon has ended and was not restarted yet, sorted.
	Lost []types.UID `json:"lost,omitempty"`
	// PreviousMode is the compute mode to restore; nil if it was not changed.
	PreviousMode *int `json:"previousComputeMode,omitempty"`
	// Closed is set while nobody may use the GPU because it has claims but no daemon: its compute mode is PROHIBITED, or about to
	// be.
	Closed bool `json:"closed,omitempty"`
	// Daemon is nil before a process was created.
	Daemon *ProcessID `json:"daemon,omitempty"`
	// Unknown are the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// recordFormat is how records are stored.
var recordFormat = &store.Format[record]{
	Kind: "MPS record", Limit: 1 << 20, Version: recordVersion,
	VersionOf: func(r *record) (version, readableFrom int) { return r.Version, 0 },
	Unknown:   func(r *record) *any { return &r.Unknown },
	Check:     (*record).check,
	Describe:  func(r *record) string { return r.Device },
	Name:      func(r *record) string { return r.Device },
	Names:     func(name string) bool { _, err := checkDevice(name); return err == nil },
}

// check validates all fields that are acted on.
func (r *record) check() error {
	pci, err := gpu.ParsePCIAddress(r.PCI)
	named, errName := checkDevice(r.Device)
	switch {
	case err != nil || errName != nil || pci != named:
		return fmt.Errorf("it is of device %q at %q", r.Device, r.PCI)
	case checkUUID(r.UUID, r.Device) != nil:
		return checkUUID(r.UUID, r.Device)
	case r.Phase != starting && r.Phase != running && r.Phase != stopping:
		return fmt.Errorf("unknown phase %q", r.Phase)
	case r.Phase == running && (r.Daemon == nil || len(r.Claims) == 0):
		return errors.New("a daemon runs without process or claims")
	case r.Daemon != nil && r.Daemon.PID <= 1:
		return fmt.Errorf("process %d is not a daemon", r.Daemon.PID)
	case checkSettings(r.Settings) != nil:
		return checkSettings(r.Settings)
	}
	for _, claims := range [][]types.UID{r.Claims, r.Lost} {
		if !slices.IsSorted(claims) || len(slices.Compact(slices.Clone(claims))) != len(claims) {
			return errors.New("claims are not sorted")
		}
		for _, claim := range claims {
			if err := checkClaim(claim); err != nil {
				return err
			}
		}
	}
	// Losing an owner costs less than treating the record as corrupt, which would stop a daemon in use.
	maps.DeleteFunc(r.Owners, func(claim types.UID, owner string) bool { return !r.has(claim) || checkOwner(owner) != nil })
	return nil
}

// pci is the GPU's address.
func (r *record) pci() gpu.PCIAddress {
	pci, _ := gpu.ParsePCIAddress(r.PCI) // was checked when the record was created
	return pci
}

// add registers a claim of an owner; empty leaves the owner as it is.
func (r *record) add(claim types.UID, owner string) {
	if owner != "" {
		owners := maps.Clone(r.Owners)
		if owners == nil {
			owners = map[types.UID]string{}
		}
		owners[claim] = owner
		r.Owners = owners
	}
	if at, found := slices.BinarySearch(r.Claims, claim); !found {
		r.Claims = slices.Insert(slices.Clone(r.Claims), at, claim)
	}
}

// has reports whether a claim is registered.
func (r *record) has(claim types.UID) bool {
	_, found := slices.BinarySearch(r.Claims, claim)
	return found
}

// keep drops the claims for which a test fails.
func (r *record) keep(test func(types.UID) bool) {
	drop := func(claim types.UID) bool { return !test(claim) }
	r.Claims = slices.DeleteFunc(slices.Clone(r.Claims), drop)
	r.Lost = slices.DeleteFunc(slices.Clone(r.Lost), drop)
	r.Owners = maps.Clone(r.Owners)
	maps.DeleteFunc(r.Owners, func(claim types.UID, _ string) bool { return drop(claim) })
}
