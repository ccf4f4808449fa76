// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// ClaimClass is the class of the CDI kind "<driver name>/claim": the parts of a claim's devices beyond the static ones.
const ClaimClass = "claim"

// ClaimID is the fully qualified CDI name of a device's additions to its GPU: a partition's capability nodes, a share's environment
// and mounts, and the UUIDs of a request's devices.
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
func (s *Static) ClaimPath(uid types.UID) string {
	return filepath.Join(s.opts.Dir, claimFile(s.opts.Driver, uid))
}

func claimFile(driver string, uid types.UID) string {
	return cdi.GenerateTransientSpecName(driver, ClaimClass, string(uid)) + ".json"
}

// uuidVariable names the devices of a container's request.
const uuidVariable = "CLEAVE_GPU_UUID"

// WriteClaim writes the spec of a claim's devices that need more than the static one (WithEdits). Partitions and servers of
// shares must exist.
func (s *Static) WriteClaim(ctx context.Context, r *records.Record) error {
	uid := r.Claim.UID
	spec := &specs.Spec{Kind: s.opts.Driver + "/" + ClaimClass}
	editor := &claimEditor{Options: &s.opts, gpuMinor: s.gpuMinor}
	for _, p := range r.WithEdits() {
		edits, err := editor.edits(p)
		if err != nil {
			return err
		}
		// A runtime applies edits in the order of the devices, and the last value of a variable counts: it replaces that of
		// the whole GPU, and the last device of a request names all of them.
		edits.Env = append(edits.Env, uuidVariable+"="+strings.Join(r.UUIDs(p.Request), ","))
		device := specs.Device{Name: claimDevice(uid, p), ContainerEdits: *edits}
		if err := parser.ValidateDeviceName(device.Name); err != nil {
			return fmt.Errorf("name the CDI device of %s: %w", p.Device, err)
		}
		spec.Devices = append(spec.Devices, device)
	}
	spec.Devices = append(spec.Devices, sessionNotes(r)...)
	s.createCapabilityNodes(ctx, editor.capabilities)
	var err error
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return fmt.Errorf("determine the version of the CDI spec: %w", err)
	}
	klog.FromContext(ctx).V(4).Info("Writing the claim's CDI spec", "path", s.ClaimPath(uid))
	return s.dir.write(spec, claimFile(s.opts.Driver, uid))
}

// sessionVariable is the variable of a device that no container is given: its value is the session of the driver
// (pkg/driver/driversession) in which a partition was created.
const sessionVariable = "CLEAVE_DRIVER_SESSION"

// sessionNotes are devices that no container is given. They record when a claim's own partitions were created, in case its record
// is lost. Annotations could do so, too, but runtimes that do not know them reject the spec: they came with CDI 0.6.0.
func sessionNotes(r *records.Record) []specs.Device {
	var notes []specs.Device
	for _, d := range r.Partitions() {
		name := sessionNote(r.Claim.UID, d.Device)
		known := slices.ContainsFunc(notes, func(n specs.Device) bool { return n.Name == name })
		if known || d.Partition.Existing || d.Session == "" {
			continue
		}
		notes = append(notes, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{Env: []string{sessionVariable + "=" + d.Session}}})
	}
	return notes
}

func sessionNote(uid types.UID, device string) string { return string(uid) + "-" + device + "-session" }

// ClaimSession is the session of the driver in which the partition of a claim's device was created, as far as the claim's spec says;
// empty if it does not.
func (s *Static) ClaimSession(uid types.UID, device string) string {
	data, err := os.ReadFile(s.ClaimPath(uid))
	var spec specs.Spec
	if err != nil || json.Unmarshal(data, &spec) != nil {
		return ""
	}
	name := sessionNote(uid, device)
	for _, d := range spec.Devices {
		if d.Name != name || len(d.ContainerEdits.Env) != 1 {
			continue
		}
		session, _ := strings.CutPrefix(d.ContainerEdits.Env[0], sessionVariable+"=")
		return session
	}
	return ""
}

// claimEditor makes the container edits of claims' devices.
type claimEditor struct {
	*Options
	gpuMinor func(device string) (int, error) // of the static spec
	// capabilities are those of the partitions so far.
	capabilities []capability
}

// edits are the container edits of one device in addition to those of its GPU.
func (e *claimEditor) edits(d *records.Device) (*specs.ContainerEdits, error) {
	edits := &specs.ContainerEdits{}
	if d.Partition != nil {
		var err error
		if edits, err = e.partition(d); err != nil {
			return nil, err
		}
	}
	if d.Share != nil && d.HasEdits() {
		return edits, e.share(edits, d)
	}
	return edits, nil
}

// partition returns the capability nodes that give a container access to a GPU instance and its compute instance.
func (e *claimEditor) partition(p *records.Device) (*specs.ContainerEdits, error) {
	if p.Partition.CI == nil {
		return nil, fmt.Errorf("partition %s has no compute instance", p.Device)
	}
	minor, err := e.gpuMinor(p.GPU)
	if err != nil {
		return nil, err
	}
	edits := &specs.ContainerEdits{}
	all, err := capabilitiesOf(e.Procfs, minor, p.Partition)
	if err != nil {
		return nil, fmt.Errorf("find the capability nodes of partition %s: %w", p.Device, err)
	}
	e.capabilities = append(e.capabilities, all...)
	for _, c := range all {
		edits.DeviceNodes = append(edits.DeviceNodes, &specs.DeviceNode{
			// With type and numbers given, a runtime creates the node itself, except in pods with user namespaces.
			Path: c.node.path, Type: "c", Major: c.node.major, Minor: c.node.minor, Permissions: "rw",
		})
	}
	return edits, nil
}

// HasClaim reports whether a claim's spec exists.
func (s *Static) HasClaim(uid types.UID) bool {
	_, err := os.Lstat(s.ClaimPath(uid))
	return err == nil
}

// Remover deletes specs. It needs no GPU driver.
type Remover struct {
	// Dir is the directory that container runtimes read specs from, Driver the DRA driver's name.
	Dir, Driver string
}

// Claims lists the claims that have a spec, in the order of their UIDs.
func (r Remover) Claims() ([]types.UID, error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the CDI specs of claims: %w", err)
	}
	before, after, _ := strings.Cut(claimFile(r.Driver, "*"), "*")
	var uids []types.UID
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), before)
		uid, spec := strings.CutSuffix(name, after)
		if ok && spec && uid != "" {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids, nil
}

// RemoveClaim deletes a claim's spec. A missing spec is not an error.
func (r Remover) RemoveClaim(uid types.UID) error { return r.remove(claimFile(r.Driver, uid)) }

// RemoveStatic deletes the static spec of a node that no longer offers GPUs. A missing spec is not an error.
func (r Remover) RemoveStatic() error { return r.remove(staticFile(r.Driver)) }

func (r Remover) remove(file string) error {
	if err := os.Remove(filepath.Join(r.Dir, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
