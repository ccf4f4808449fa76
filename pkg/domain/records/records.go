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

// Format is the version this release writes. It reads every version up to it, and later ones whose readableFrom allows it:
// earlier releases can read a version that only adds fields, and preserve those fields.
const Format = 1

// MaxSize bounds the size of a record file in bytes. A claim has at most 32 devices, some 400 bytes each.
const MaxSize = 256 << 10

// Record is the allocation of one claim on this node.
type Record struct {
	// Format of the file, see the constant.
	Format int `json:"format"`
	// ReadableFrom is the earliest format whose releases can read the file; 0 for Format itself.
	ReadableFrom int `json:"readableFrom,omitempty"`
	// BootID of the boot in which the claim was prepared (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// State of the claim; the zero value is Prepared.
	State State `json:"state,omitempty"`
	// Driver is the name under which the devices were allocated, such as gpu.cleave.dev.
	Driver string `json:"driver"`
	Claim  Claim  `json:"claim"`
	// Pods that reserved the claim, as far as known.
	Pods []types.UID `json:"pods,omitempty"`
	// OtherConsumers: a consumer other than a pod has reserved the claim as well; its pods are unknown.
	OtherConsumers bool `json:"otherConsumers,omitempty"`
	// OwnerPod is the pod that the claim was generated for; empty for a claim that pods reference by name, and in records of releases
	// that did not record it.
	OwnerPod types.UID `json:"ownerPod,omitempty"`
	// Unprepared: the kubelet was answered that the claim is unprepared although something is left to release, or its pods are known to
	// have ended. The same answer is given again. False in records of releases that did not record it.
	Unprepared bool `json:"unprepared,omitempty"`
	// Devices in the order of the claim's allocation.
	Devices []Device `json:"devices"`
	// Unknown holds the fields of a later release; nil if there are none.
	Unknown any `json:"-"`
}

// State is the progress of a claim.
type State string

// The states of claims.
const (
	// Prepared: everything that the record lists exists.
	Prepared State = ""
	// Preparing: the hardware is being changed, or a change was interrupted. Any of the record's partitions may exist.
	Preparing State = "preparing"
	// Releasing: the claim is no longer allocated, but processes of its pods have not ended yet or its partitions have not been
	// destroyed. Devices of which nothing is left are Released.
	Releasing State = "releasing"
)

// Claim identifies a ResourceClaim. A name can be reused, a UID cannot.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// String returns "namespace/name (UID)".
func (c Claim) String() string {
	return c.Namespace + "/" + c.Name + " (" + string(c.UID) + ")"
}

// Device is one allocated device of a claim.
type Device struct {
	// Request is the request, or "request/subrequest", that the device satisfies.
	Request string `json:"request"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	// AdminAccess devices are observed, not allocated exclusively.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// GPU is the name of the whole-GPU device of the device's GPU.
	GPU string `json:"gpu"`
	// UUID of the GPU when the claim was prepared.
	UUID string `json:"uuid"`
	// Partition is the device's partition; nil for a whole GPU. While the record is Preparing it contains only
	// profile and placement.
	Partition *gpu.Partition `json:"partition,omitempty"`
	// Session of the driver in which the partition was created, see pkg/driver/driversession; empty in records of releases that
	// did not record it.
	Session string `json:"driverSession,omitempty"`
	// Witness of the partition, recorded when the driver was released: while it is unchanged, so is the partition.
	Witness string `json:"witness,omitempty"`
	// Share is the claim's share of a shared GPU or partition; nil for exclusive devices and devices with admin access.
	Share *Share `json:"share,omitempty"`
	// ShareID is that of the allocation of a device with admin access: the allocator gives one for each device that several claims may have
	// (allocateDevice). Empty for all others.
	ShareID string `json:"shareID,omitempty"`
	// Released: the claim is being released, and nothing of this device is left, so other claims may have it. It stays on record, as the
	// API server may have it allocated. False in records of releases that did not record it.
	Released bool `json:"released,omitempty"`
	// CDIDeviceIDs are the fully qualified names returned to the kubelet.
	CDIDeviceIDs []string `json:"cdiDeviceIDs"`
}

// AllocatedShareID is by which share ID the claim's allocation has the device; empty for none. That of an exclusive share is not in the
// allocation.
func (d *Device) AllocatedShareID() string {
	if d.Share != nil && !d.Share.Exclusive {
		return d.Share.ID
	}
	return d.ShareID
}

// GPUs returns the names of the GPUs of the record's devices, sorted and without duplicates.
func (r *Record) GPUs() []string {
	var names []string
	for _, d := range r.Devices {
		names = append(names, d.GPU)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// EndsWithReset reports whether of a claim that has ended nothing but partitions and shares is left on a GPU, and no process of its pods. A
// reset of the GPU ends partitions. The time slices and the compute mode of a GPU that has failed may be restored only after its reset.
func (r *Record) EndsWithReset(gpuDevice string) bool {
	return r.hasEndedBut(gpuDevice, func(d *Device) bool { return d.Partition != nil || d.Share != nil })
}

// EndsBeforeChange is EndsWithReset for a change of the GPU's MIG mode: nothing but partitions is left, which are destroyed before.
func (r *Record) EndsBeforeChange(gpuDevice string) bool {
	return r.hasEndedBut(gpuDevice, func(d *Device) bool { return d.Partition != nil && d.Share == nil })
}

// hasEndedBut reports whether a claim has ended, with its pods' processes, and what is left of it on a GPU is as given. Of a device with
// admin access nothing is left.
func (r *Record) hasEndedBut(gpuDevice string, left func(d *Device) bool) bool {
	return r.State != Prepared && len(r.Pods) == 0 && !r.OtherConsumers && !slices.ContainsFunc(r.Devices, func(d Device) bool {
		return d.GPU == gpuDevice && !d.Released && !d.AdminAccess && !left(&d)
	})
}

// Store is the directory of a node's records, keyed by claim UID.
type Store = store.Directory[types.UID, Record]

// recordFormat defines how records are stored.
var recordFormat = &store.Format[Record]{
	Kind: "claim record", Limit: MaxSize, Version: Format, Copied: true,
	VersionOf: func(r *Record) (version, readableFrom int) { return r.Format, r.ReadableFrom },
	Unknown:   func(r *Record) *any { return &r.Unknown },
	Check:     (*Record).check,
	Describe:  func(r *Record) string { return r.Claim.String() },
	Name:      func(r *Record) string { return string(r.Claim.UID) },
	Names:     uidPattern.MatchString,
}

// OpenStore opens the directory, creating it if necessary.
func OpenStore(disk store.FileSystem, dir string) (*Store, error) {
	return store.Open[types.UID](disk, dir, recordFormat)
}

// List reads all records of a directory without creating anything.
func List(disk store.FileSystem, dir string) (all []*Record, corrupt []error, err error) {
	return store.At[types.UID](disk, dir, recordFormat).List()
}

// Aside lists the claims of a directory whose records were set aside and have not been written again.
func Aside(disk store.FileSystem, dir string) ([]types.UID, error) {
	return store.At[types.UID](disk, dir, recordFormat).Aside()
}

// uidPattern matches UIDs that are safe as file names.
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

// Partitions lists the devices that are partitions of the record's own, not those with admin access.
func (r *Record) Partitions() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil && !r.Devices[i].AdminAccess {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// InSpec lists the devices that need more than a record: partitions, including observed ones, and shares.
func (r *Record) InSpec() []*Device {
	var found []*Device
	for i := range r.Devices {
		if r.Devices[i].Partition != nil || r.Devices[i].Share != nil {
			found = append(found, &r.Devices[i])
		}
	}
	return found
}

// HasEdits reports whether containers get more for a device than for its whole GPU. A claim that time-slices a GPU among its own
// processes gets nothing more, and CDI has no device without edits (its specification, "containerEdits").
func (d *Device) HasEdits() bool {
	return d.Partition != nil || d.Share != nil && (!d.Share.Exclusive || d.Share.Kind == gpu.MPS)
}

// WithEdits lists the devices of the claim's own CDI spec: those that have edits, and the last device of each request with
// several, whose edits list all of the request's devices (UUIDs).
func (r *Record) WithEdits() []*Device {
	var found []*Device
	for i := range r.Devices {
		if d := &r.Devices[i]; d.HasEdits() || r.namesOthers(i) {
			found = append(found, d)
		}
	}
	return found
}

// namesOthers reports whether a device is the last of a request with several devices.
func (r *Record) namesOthers(at int) bool {
	same := func(d Device) bool { return d.Request == r.Devices[at].Request }
	return slices.ContainsFunc(r.Devices[:at], same) && !slices.ContainsFunc(r.Devices[at+1:], same)
}

// UUIDs returns the UUIDs of a request's devices, in allocation order and without duplicates: the partition's, or else the GPU's.
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

// OwnUUID returns the UUID of the device's partition, or else of its GPU.
func (d *Device) OwnUUID() string {
	if d.Partition != nil {
		return d.Partition.UUID
	}
	return d.UUID
}

// Clone returns a deep copy.
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
