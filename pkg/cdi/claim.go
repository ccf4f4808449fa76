// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/records"
)

// ClaimClass of the CDI kind "<driver name>/claim": what a claim's devices need beside the static ones.
const ClaimClass = "claim"

// ClaimID is the fully qualified CDI name of what a partition or share has beside its GPU: its capability nodes, or its
// numbers and what it shares.
func (s *Static) ClaimID(uid types.UID, d *records.Device) string {
	return s.opts.Driver + "/" + ClaimClass + "=" + claimDevice(uid, d)
}

func claimDevice(uid types.UID, d *records.Device) string {
	name := string(uid) + "-" + d.Device
	if d.Share != nil {
		name += "-" + d.Share.ID // a claim can have several shares of one device
	}
	return name
}

// ClaimPath is the file of a claim's spec.
func (s *Static) ClaimPath(uid types.UID) string { return filepath.Join(s.opts.Dir, s.claimFile(uid)) }

func (s *Static) claimFile(uid types.UID) string {
	return cdi.GenerateTransientSpecName(s.opts.Driver, ClaimClass, string(uid)) + ".json"
}

// WriteClaim writes the small spec of a claim with partitions or shares. They must exist.
func (s *Static) WriteClaim(ctx context.Context, uid types.UID, parts []*records.Device) error {
	spec := &specs.Spec{Kind: s.opts.Driver + "/" + ClaimClass}
	for _, p := range parts {
		device, err := s.claimEdits(p)
		if err != nil {
			return err
		}
		device.Name = claimDevice(uid, p)
		if err := parser.ValidateDeviceName(device.Name); err != nil {
			return fmt.Errorf("name the CDI device of %s: %w", p.Device, err)
		}
		spec.Devices = append(spec.Devices, *device)
	}
	var err error
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return fmt.Errorf("work out the version of the CDI spec: %w", err)
	}
	klog.FromContext(ctx).V(4).Info("Writing the claim's CDI spec", "path", s.ClaimPath(uid))
	return s.write(spec, s.claimFile(uid))
}

// claimEdits is the CDI device of one partition or share, without a name.
func (s *Static) claimEdits(d *records.Device) (*specs.Device, error) {
	if d.Share != nil {
		return s.shareDevice(d)
	}
	return s.partitionDevice(d)
}

// partitionDevice is the CDI device of one partition: the device nodes by which the driver lets a container at a GPU
// instance and a compute instance.
func (s *Static) partitionDevice(p *records.Device) (*specs.Device, error) {
	if p.Partition.CI == nil {
		return nil, fmt.Errorf("partition %s has no compute instance", p.Device)
	}
	major, err := s.capabilityMajor()
	if err != nil {
		return nil, err
	}
	minor, err := s.gpuMinor(p.GPU)
	if err != nil {
		return nil, err
	}
	device := &specs.Device{}
	gi := path.Join("driver/nvidia/capabilities", "gpu"+strconv.Itoa(minor), "mig", "gi"+strconv.Itoa(p.Partition.GI))
	for _, file := range []string{path.Join(gi, "access"), path.Join(gi, "ci"+strconv.Itoa(*p.Partition.CI), "access")} {
		capMinor, err := s.capabilityMinor(file)
		if err != nil {
			return nil, fmt.Errorf("find the capability node of partition %s: %w", p.Device, err)
		}
		device.ContainerEdits.DeviceNodes = append(device.ContainerEdits.DeviceNodes, &specs.DeviceNode{
			// With type and numbers given the node need not exist on the host.
			Path: "/dev/nvidia-caps/nvidia-cap" + strconv.FormatInt(capMinor, 10), Type: "c", Major: major, Minor: capMinor, Permissions: "rw",
		})
	}
	return device, nil
}

// HasClaim tells whether a claim's spec is there.
func (s *Static) HasClaim(uid types.UID) bool {
	_, err := os.Lstat(s.ClaimPath(uid))
	return err == nil
}

// Remover deletes specs, which needs no GPU driver.
type Remover struct {
	// Dir is where container runtimes look for specs, Driver the DRA driver's name.
	Dir, Driver string
}

// RemoveClaim deletes a claim's spec. A claim without one is no error.
func (r Remover) RemoveClaim(uid types.UID) error {
	file := cdi.GenerateTransientSpecName(r.Driver, ClaimClass, string(uid)) + ".json"
	if err := os.Remove(filepath.Join(r.Dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the claim's CDI spec: %w", err)
	}
	return nil
}

// RemoveStatic deletes the static spec of a node that hands out GPUs no more. That there is none is no error.
func (r Remover) RemoveStatic() error {
	if err := os.Remove(filepath.Join(r.Dir, staticFile(r.Driver))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	return nil
}

// gpuMinor is the minor number of a GPU of the static spec.
func (s *Static) gpuMinor(device string) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	minor, ok := s.minors[device]
	if !ok {
		return 0, fmt.Errorf("GPU %s is not in the CDI spec %s", device, s.Path())
	}
	return minor, nil
}

// capabilityMajor is the major number of capability nodes on this boot.
func (s *Static) capabilityMajor() (int64, error) {
	data, err := fs.ReadFile(s.opts.Procfs, "devices")
	if err != nil {
		return 0, fmt.Errorf("find the major number of nvidia-caps: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 2 && (fields[1] == "nvidia-caps" || fields[1] == "nvidia/nvidia-caps") {
			return strconv.ParseInt(fields[0], 10, 32)
		}
	}
	return 0, errors.New("find the major number of nvidia-caps: it is not in /proc/devices; is the nvidia module loaded?")
}

// capabilityMinor reads the minor number out of a capability file.
func (s *Static) capabilityMinor(file string) (int64, error) {
	data, err := fs.ReadFile(s.opts.Procfs, file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "DeviceFileMinor:"); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 32)
		}
	}
	return 0, fmt.Errorf("%s has no DeviceFileMinor", file)
}
