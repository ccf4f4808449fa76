// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// ErrUnresolved is wrapped for a CDI device that no spec has.
var ErrUnresolved = errors.New("no CDI spec has it")

// Edits are what the container runtime would change for CDI devices, in their order: those of the device and those of
// its spec. The specs are read from disk anew, as a runtime does on a miss.
func (d *Driver) Edits(ids []string) ([]specs.ContainerEdits, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(d.CDIDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read CDI specs: %w", err)
	}
	var edits []specs.ContainerEdits
	for _, id := range ids {
		if _, _, _, err := parser.ParseQualifiedName(id); err != nil {
			return nil, fmt.Errorf("parse CDI device %q: %w", id, err)
		}
		device := cache.GetDevice(id)
		if device == nil {
			return nil, fmt.Errorf("resolve CDI device %s in %q: %w", id, d.CDIDirs, ErrUnresolved)
		}
		edits = append(edits, device.ContainerEdits, device.GetSpec().ContainerEdits)
	}
	return edits, nil
}

// Resolved are the CDI devices among ids that specs have.
func (d *Driver) Resolved(ids []string) ([]string, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(d.CDIDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read CDI specs: %w", err)
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return cache.GetDevice(id) == nil }), nil
}
