// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
)

// Bounds of what callers may ask. They keep nonsense out, not sharing down: that is policy's.
const (
	maxClaims       = 1024 // of one GPU
	maxUID          = 128
	maxOwner        = 253     // a DNS subdomain, as DRA driver names are
	maxSharedMemory = 1 << 42 // bytes
	maxPinnedMemory = 1 << 50 // bytes
)

// uuids are what NVML names GPUs by. A UUID becomes part of an environment and of a command.
var uuids = regexp.MustCompile(`^GPU-[0-9a-zA-Z-]{1,64}$`)

func checkUUID(uuid string) error {
	if !uuids.MatchString(uuid) {
		return fmt.Errorf("%q is not the UUID of a GPU, such as GPU-01234567-89ab-cdef-0123-456789abcdef", uuid)
	}
	return nil
}

// checkDevice also gives the address that the name says. A device's name becomes that of a directory.
func checkDevice(device string) (gpu.PCIAddress, error) {
	parts := strings.Split(strings.TrimPrefix(device, "gpu-"), "-")
	if len(parts) == 4 {
		pci, err := gpu.ParsePCIAddress(parts[0] + ":" + parts[1] + ":" + parts[2] + "." + parts[3])
		if err == nil && pci.DeviceName() == device {
			return pci, nil
		}
	}
	return gpu.PCIAddress{}, fmt.Errorf("%q is not the device name of a whole GPU, such as gpu-0000-1b-00-0", device)
}

func checkClaim(claim types.UID) error {
	printable := func(r rune) bool { return r <= ' ' || r >= 0x7f }
	if claim == "" || len(claim) > maxUID || strings.ContainsFunc(string(claim), printable) {
		return fmt.Errorf("%.150q is not the UID of a claim", claim)
	}
	return nil
}

// checkOwner takes the empty one, too: plugins of earlier releases send none.
func checkOwner(owner string) error {
	if len(owner) > maxOwner || strings.ContainsFunc(owner, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
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
	if err := errors.Join(checkUUID(r.UUID), checkOwner(r.Owner)); err != nil {
		return err
	}
	pci, err := checkDevice(r.Device)
	if err != nil {
		return err
	}
	if pci != r.PCI {
		return fmt.Errorf("device %s is not at %s", r.Device, r.PCI)
	}
	return checkSettings(r.Settings)
}
