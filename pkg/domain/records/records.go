// SPDX-License-Identifier: Apache-2.0

package records

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Format is the version this release writes. It reads every version up to it, and later ones that say so by readableFrom:
// what only adds fields can be read by the releases before, which keep the fields.
const Format = 1

// MaxSize bounds the size of a record file in bytes. A claim has at most 32 devices, some 400 bytes each.
const MaxSize = 256 << 10

// Record is what is allocated to one claim on this node.
type Record struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which the claim was prepared (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// State of what the record stands for; the zero value is Prepared.
	State State `json:"state,omitempty"`
	// Driver is the name under which the claim was allocated its devices, such as gpu.cleave.dev.
	Driver string `json:"driver"`
	Claim  Claim  `json:"claim"`
	// Pods that reserved the claim, as far as they are known.
	Pods []types.UID `json:"pods,omitempty"`
	// OtherConsumers is set where something else has reserved the claim, too, whose pods are not known.
	OtherConsumers bool `json:"otherConsumers,omitempty"`
	// OwnerPod is the pod that the claim was generated for; empty for a claim that pods share by its name, and in records of releases
	// that noted none.
	OwnerPod types.UID `json:"ownerPod,omitempty"`
	// Devices in the order of the claim's allocation.
	Devices []Device `json:"devices"`
	// Unknown are the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// State is how far a claim is.
type State string

// The states of claims.
const (
	// Prepared: everything that the record lists is there.
	Prepared State = ""
	// Preparing: the hardware is being changed, or a change was interrupted. Any of the record's partitions may exist.
	Preparing State = "preparing"
	// Releasing: nothing is allocated to the claim any more, and processes of its pods are still to end or its partitions to be
	// destroyed.
	Releasing State = "releasing"
)

// Claim identifies a ResourceClaim. A name can be reused, a UID cannot.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// String is "namespace/name (UID)".
func (c Claim) String() string {
	return c.Namespace + "/" + c.Name + " (" + string(c.UID) + ")"
}

// Device is one allocated device of a claim.
type Device struct {
	// Request is the request, or "request/subrequest", that the device answers.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// AdminAccess devices are observed, not allocated exclusively.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// GPU is the name of the whole-GPU device of the GPU this device is made of.
	GPU string `json:"gpu"`
	// UUID of the GPU when the claim was prepared.
	UUID string `json:"uuid"`
	// Partition is what the device is on the GPU; nil for a whole GPU. While the record is Preparing it holds only
	// profile and placement.
	Partition *gpu.Partition `json:"partition,omitempty"`
	// Session of the driver in which the partition was created, see pkg/driver/driversession; empty in records of releases that
	// noted none.
	Session string `json:"driverSession,omitempty"`
	// Witness of the partition, noted when the driver was released: while it is the same, so is the partition.
	Witness string `json:"witness,omitempty"`
	// Share is the claim's part of a shared GPU or partition; nil for others, and for devices with admin access.
	Share *Share `json:"share,omitempty"`
	// CDIDeviceIDs are the fully qualified names returned to the kubelet.
	CDIDeviceIDs []string `json:"cdiDeviceIDs"`
}

// GPUs are the names of all GPUs the record's devices are made of, sorted, once each.
func (r *Record) GPUs() []string {
	var names []string
	for _, d := range r.Devices {
		names = append(names, d.GPU)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Store is the directory of the records of a node, by the UID of the claim.
type Store = store.Directory[types.UID, Record]

// recordFormat is how records are stored.
var recordFormat = &store.Format[Record]{
	Kind: "claim record", Limit: MaxSize, Version: Format, Copied: true,
	VersionOf: func(r *Record) (version, readableFrom int) { return r.Format, r.ReadableFrom },
	Unknown:   func(r *Record) *any { return &r.Unknown },
	Check:     (*Record).check,
	Describe:  func(r *Record) string { return r.Claim.String() },
	Name:      func(r *Record) string { return string(r.Claim.UID) },
	Names:     uidPattern.MatchString,
}

// OpenStore creates the directory if need be.
func OpenStore(disk store.FileSystem, dir string) (*Store, error) {
	return store.Open[types.UID](disk, dir, recordFormat)
}

// List reads all records of a directory and creates nothing.
func List(disk store.FileSystem, dir string) (all []*Record, corrupt []error, err error) {
	return store.At[types.UID](disk, dir, recordFormat).List()
}

// uidPattern is that of UIDs: nothing but a plain name.
var uidPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,63}$`)

// driverPattern is that of driver names, which are names of directories, too.
var driverPattern = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)

// Decode reads a record of this or an earlier format, or of a later one that this release can read. Fields it does not
// know are kept.
func Decode(data []byte) (*Record, error) { return recordFormat.Decode(data) }

func (r *Record) check() error {
	switch {
	case !uidPattern.MatchString(string(r.Claim.UID)):
		return fmt.Errorf("claim UID %q is not letters, digits and dashes", r.Claim.UID)
	case r.State != Prepared && r.State != Preparing && r.State != Releasing:
		return fmt.Errorf("state %q is not one of %q, %q, %q", r.State, Prepared, Preparing, Releasing)
	case !driverPattern.MatchString(r.Driver):
		return fmt.Errorf("driver %q is not a DNS name", r.Driver)
	case len(r.Devices) == 0:
		return errors.New("it lists no devices")
	}
	for i, d := range r.Devices {
		if d.Device == "" || d.GPU == "" || d.UUID == "" {
			return fmt.Errorf("devices[%d] lacks device, gpu or uuid", i)
		}
		s := d.Share
		if s != nil && (!slices.Contains(gpu.Shares(), s.Kind) || s.ID == "" || s.Kind == gpu.MPS && s.MPS == nil) {
			return fmt.Errorf("devices[%d] is no whole share, of kind %q", i, s.Kind)
		}
	}
	return nil
}

// Partitions lists the devices that are partitions of the record's own; those with admin access are not.
func (r *Record) Partitions() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil && !r.Devices[i].AdminAccess {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// InSpec lists the devices that need more than a record: partitions and shares, and partitions that the claim observes.
func (r *Record) InSpec() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil || r.Devices[i].Share != nil {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// HasEdits reports whether containers get more for a device than for its whole GPU. Those of a claim that shares a GPU in
// time among its own processes do not: CDI has no device without edits (its specification, "containerEdits").
func (d *Device) HasEdits() bool {
	return d.Partition != nil || d.Share != nil && (!d.Share.Exclusive || d.Share.Kind == gpu.MPS)
}

// WithEdits lists the devices of the claim's own CDI spec: those that have edits, and of each request with several devices the
// last one, whose edits name all of them (UUIDs).
func (r *Record) WithEdits() []*Device {
	var found []*Device
	for i := range r.Devices {
		if d := &r.Devices[i]; d.HasEdits() || r.namesOthers(i) {
			found = append(found, d)
		}
	}
	return found
}

// namesOthers reports whether a device is the last of a request with several.
func (r *Record) namesOthers(at int) bool {
	same := func(d Device) bool { return d.Request == r.Devices[at].Request }
	return slices.ContainsFunc(r.Devices[:at], same) && !slices.ContainsFunc(r.Devices[at+1:], same)
}

// UUIDs are those of the devices of a request, in order of the allocation, once each: that of the partition, or else of the GPU.
func (r *Record) UUIDs(request string) []string {
	var uuids []string
	for i := range r.Devices {
		d := &r.Devices[i]
		if uuid := d.OwnUUID(); d.Request == request && !slices.Contains(uuids, uuid) {
			uuids = append(uuids, uuid)
		}
	}
	return uuids
}

// OwnUUID is that of the device's partition, or else of its GPU.
func (d *Device) OwnUUID() string {
	if d.Partition != nil {
		return d.Partition.UUID
	}
	return d.UUID
}

// Clone returns a copy that shares nothing with the record.
func (r *Record) Clone() *Record {
	c := *r
	c.Pods, c.Devices = slices.Clone(r.Pods), slices.Clone(r.Devices)
	for i := range c.Devices {
		d := &c.Devices[i]
		d.CDIDeviceIDs = slices.Clone(d.CDIDeviceIDs)
		if d.Partition != nil {
			p := *d.Partition
			d.Partition = &p
		}
		if d.Share != nil {
			d.Share = d.Share.clone()
		}
	}
	return &c
}
