// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// Bounds of requests. They reject nonsense; limits on sharing are the policy's.
const (
	maxClaims       = 1024 // of one daemon
	maxUID          = 128
	maxOwner        = 253     // a DNS subdomain, as DRA driver names are
	maxSharedMemory = 1 << 42 // bytes
	maxPinnedMemory = 1 << 50 // bytes
)

// uuids matches NVML's UUIDs of GPUs and MIG devices. A UUID becomes part of an environment and of a command.
var uuids = regexp.MustCompile(`^(GPU|MIG)-[0-9a-zA-Z-]{1,64}$`)

// checkUUID checks the UUID of a GPU or partition.
func checkUUID(uuid, device string) error {
	want := "GPU-01234567-89ab-cdef-0123-456789abcdef"
	if isPartition(device) {
		want = strings.Replace(want, "GPU-", "MIG-", 1)
	}
	if !uuids.MatchString(uuid) || uuid[:4] != want[:4] {
		return fmt.Errorf("%q is not the UUID of %s, such as %s", uuid, mps.Subject(device), want)
	}
	return nil
}

// isPartition distinguishes the devices of partitions from those of whole GPUs.
func isPartition(device string) bool {
	_, _, ok := gpu.ParsePartitionName(device)
	return ok
}

// checkDevice also returns the PCI address in the name. A device's name becomes that of a directory.
func checkDevice(device string) (gpu.PCIAddress, error) {
	pci, err := gpu.ParseDeviceName(device)
	if err == nil {
		name := pci.DeviceName()
		if id, start, ok := gpu.ParsePartitionName(device); ok {
			name = gpu.Place{ProfileID: id, Placement: gpu.Placement{Start: start}}.DeviceName(name)
		}
		if name == device && len(device) <= maxDevice {
			return pci, nil
		}
	}
	return gpu.PCIAddress{}, fmt.Errorf("%q is not the device name of a whole GPU or a partition, such as gpu-0000-1b-00-0", device)
}

// maxDevice leaves room for the names of MPS's sockets, see maxDir: that of a partition of any profile at an address with an
// 8-digit domain.
const maxDevice = len("gpu-00000000-1b-00-0-mig-127-11")

func checkClaim(claim types.UID) error {
	printable := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if claim == "" || len(claim) > maxUID || strings.ContainsFunc(string(claim), printable) {
		return fmt.Errorf("%.150q is not the UID of a claim", claim)
	}
	return nil
}

func checkOwner(owner string) error {
	if owner == "" || len(owner) > maxOwner || strings.ContainsFunc(owner, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("%.300q is not the name of a DRA driver", owner)
	}
	return nil
}

func checkSettings(s mps.Settings) error {
	switch {
	case s.SharedMemory <= 0 || s.SharedMemory > maxSharedMemory:
		return fmt.Errorf("a shared memory of %d bytes is not in 1 to %d", s.SharedMemory, int64(maxSharedMemory))
	case s.ActiveThreadPercentage < 0 || s.ActiveThreadPercentage > 100:
		return fmt.Errorf("an active thread percentage of %d is not in 0 to 100", s.ActiveThreadPercentage)
	case s.PinnedMemory != 0 && (s.PinnedMemory < 1<<20 || s.PinnedMemory > maxPinnedMemory):
		return fmt.Errorf("a pinned memory limit of %d bytes is neither 0 nor in 1 MiB to %d bytes", s.PinnedMemory, int64(maxPinnedMemory))
	}
	return nil
}

func checkRequest(r mps.Request) error {
	if err := checkClaim(r.Claim); err != nil {
		return err
	}
	pci, err := checkDevice(r.Device)
	if err != nil {
		return err
	}
	if err := errors.Join(checkUUID(r.UUID, r.Device), checkOwner(r.Owner)); err != nil {
		return err
	}
	if pci != r.PCI {
		return fmt.Errorf("device %s is not at %s", r.Device, r.PCI)
	}
	return checkSettings(r.Settings)
}
