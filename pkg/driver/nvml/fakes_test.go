// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// TestMain keeps the log out of the results: what it says is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// discover reads the hardware of a library once.
func discover(ctx context.Context, lib Library, sysfs fs.ReadLinkFS) (*discovery, error) {
	return newSession(lib, sysfs, newWatchdogs()).calls.discover(ctx)
}

// fakeLibrary is a driver whose calls fail as a test says. What no test of this package calls is nil.
type fakeLibrary struct {
	Library
	devices []*fakeDevice
	errs    map[string]error // by method name
	calls   []string
	called  func(name string) // may be nil
	set     *fakeEventSet     // the last one
}

func (l *fakeLibrary) call(name string) error {
	l.calls = append(l.calls, name)
	if l.called != nil {
		l.called(name)
	}
	return l.errs[name]
}

func (l *fakeLibrary) Init() error     { return l.call("Init") }
func (l *fakeLibrary) Shutdown() error { return l.call("Shutdown") }
func (l *fakeLibrary) SystemDriverVersion() (string, error) {
	return "580.95.05", l.call("SystemDriverVersion")
}
func (l *fakeLibrary) SystemCUDADriverVersion() (int, error) {
	return 12080, l.call("SystemCUDADriverVersion")
}
func (l *fakeLibrary) ConfidentialComputing() (bool, error) {
	return false, l.call("ConfidentialComputing")
}
func (l *fakeLibrary) DeviceCount() (int, error) { return len(l.devices), l.call("DeviceCount") }

func (l *fakeLibrary) EventSet() (EventSet, error) {
	if err := l.call("EventSet"); err != nil {
		return nil, err
	}
	l.set = &fakeEventSet{lib: l, registered: map[*fakeDevice]uint64{}}
	return l.set, nil
}

// hangsIn makes a call not return until a channel is closed.
func hangsIn(name string, until <-chan struct{}) func(string) {
	return func(called string) {
		if called == name {
			<-until
		}
	}
}

// fakeEventSet is an event set that gives what a test puts into it.
type fakeEventSet struct {
	lib        *fakeLibrary
	registered map[*fakeDevice]uint64
	next       []EventData
}

func (s *fakeEventSet) Wait(time.Duration) (EventData, bool, error) {
	if err := s.lib.call("Wait"); err != nil || len(s.next) == 0 {
		return EventData{}, false, err
	}
	e := s.next[0]
	s.next = s.next[1:]
	return e, true, nil
}

func (s *fakeEventSet) Free() error { return s.lib.call("Free") }

func (d *fakeDevice) Handle() any { return d }

func (d *fakeDevice) Temperature() error { return d.fail("Temperature") }

func (d *fakeDevice) VirtualizationMode() (int, error) {
	return 0, d.fail("VirtualizationMode")
}

func (d *fakeDevice) SupportedEventTypes() (uint64, error) {
	return d.events, d.fail("SupportedEventTypes")
}

func (d *fakeDevice) RegisterEvents(types uint64, set EventSet) error {
	if err := d.fail("RegisterEvents"); err != nil {
		return err
	}
	set.(*fakeEventSet).registered[d] = types
	return nil
}

func (l *fakeLibrary) DeviceByIndex(index int) (Device, error) {
	if err := l.call(fmt.Sprintf("DeviceByIndex(%d)", index)); err != nil {
		return nil, err
	}
	return l.devices[index], nil
}

func (l *fakeLibrary) DeviceByPCI(pci gpu.PCIAddress) (Device, error) {
	for _, d := range l.devices {
		if at, err := gpu.ParsePCIAddress(d.bus); err == nil && at == pci {
			return d, l.call("DeviceByPCI")
		}
	}
	return nil, gpu.ErrNotFound
}

// fakeDevice is an H100 whose calls fail as a test says. What no test of this package calls is nil.
type fakeDevice struct {
	Device
	product string // empty: an H100
	// generation is the compute capability's first number; zero: 9.
	generation int
	mig        bool
	bus        string
	uuid       string
	minor      int
	reserved   uint64
	links      []bool // one for each link of the board
	// remotes are the PCI addresses of the GPUs to which links lead; other links lead to switches.
	remotes map[int]string
	// speeds are those of single links; without one, a link has no speed of its own.
	speeds     map[int]uint64
	fabric     FabricInfo
	profiles   map[int]gpu.Profile     // by enum
	placements map[int][]gpu.Placement // by profile ID
	pids       []int
	events     uint64            // that the GPU has
	recovery   uint64            // field 230
	remap      uint64            // field 145
	errs       map[string]error  // by method name
	called     func(name string) // may be nil
}

func (d *fakeDevice) fail(name string) error {
	if d.called != nil {
		d.called(name)
	}
	return d.errs[name]
}

func (d *fakeDevice) Links() Links { return fakeLinks{d} }
func (d *fakeDevice) MIG() MIG     { return fakeMIG{d: d} }

func (d *fakeDevice) UUID() (string, error)     { return d.uuid, d.fail("UUID") }
func (d *fakeDevice) MinorNumber() (int, error) { return d.minor, d.fail("MinorNumber") }
func (d *fakeDevice) PCIInfo() (PCIInfo, error) {
	return PCIInfo{BusID: d.bus, DeviceID: 0x233010de, SubsystemID: 0x16c110de}, d.fail("PCIInfo")
}
func (d *fakeDevice) Name() (string, error) {
	return cmp.Or(d.product, "NVIDIA H100 80GB HBM3"), d.fail("Name")
}
func (d *fakeDevice) Brand() (int, error)              { return 14, d.fail("Brand") }
func (d *fakeDevice) Architecture() (int, error)       { return 9, d.fail("Architecture") }
func (d *fakeDevice) MemoryTotal() (uint64, error)     { return 80 << 30, d.fail("MemoryTotal") }
func (d *fakeDevice) AddressingMode() (int, error)     { return 1, d.fail("AddressingMode") }
func (d *fakeDevice) RunningProcesses() ([]int, error) { return d.pids, d.fail("RunningProcesses") }

func (d *fakeDevice) CUDAComputeCapability() (major, minor int, err error) {
	return cmp.Or(d.generation, 9), 0, d.fail("CUDAComputeCapability")
}

func (d *fakeDevice) MemoryTotalReserved() (total, reserved uint64, err error) {
	return 80 << 30, d.reserved, d.fail("MemoryTotalReserved")
}

func (d *fakeDevice) ECCMode() (current, pending bool, err error) {
	return true, false, d.fail("ECCMode")
}

func (d *fakeDevice) FieldValues(fields []Field) ([]FieldValue, error) {
	var values []FieldValue
	for _, f := range fields {
		v := FieldValue{Err: gpu.ErrNotSupported}
		if speed, ok := d.speeds[f.Scope]; ok && f.ID == 164 {
			v = FieldValue{Value: speed}
		}
		if f.ID == 230 {
			v = FieldValue{Value: d.recovery, Err: d.fail("field 230")}
		}
		if f.ID == 145 {
			v = FieldValue{Value: d.remap, Err: d.fail("field 145")}
		}
		if f.ID == 90 {
			v = FieldValue{Value: 26562, Err: d.fail("field 90")}
		}
		values = append(values, v)
	}
	return values, d.fail("FieldValues")
}

// h100 is a GPU in good health at a bus number, with two profiles.
func h100(i int) *fakeDevice {
	d := &fakeDevice{
		bus: fmt.Sprintf("00000000:%02X:00.0", 0x18+0x10*i), uuid: fmt.Sprintf("GPU-%d", i), minor: i, reserved: 1 << 30,
		links: []bool{true, true, true, false}, errs: map[string]error{},
	}
	d.setBoard(8)
	return d
}

// setBoard gives the board so many placement units: one profile of a unit, one of the whole.
func (d *fakeDevice) setBoard(units int) {
	d.profiles = map[int]gpu.Profile{
		0: {ID: 19, ComputeSlices: 1, MaxInstances: units - 1, Memory: 10 << 30},
		4: {ID: 0, ComputeSlices: 7, MaxInstances: 1, Memory: 80 << 30},
	}
	d.placements = map[int][]gpu.Placement{0: {{Start: 0, Size: units}}}
	for i := range units - 1 {
		// The driver may report them in any order.
		d.placements[19] = append([]gpu.Placement{{Start: i, Size: 1}}, d.placements[19]...)
	}
}

// noSysfs is what a virtual machine may show.
func noSysfs() fs.ReadLinkFS { return fstest.MapFS{} }

func openFake(t *testing.T, lib *fakeLibrary) *Session {
	t.Helper()
	s, err := OpenLibrary(t.Context(), lib, noSysfs())
	if err != nil {
		t.Fatalf("OpenLibrary: %v", err)
	}
	return s
}

// fakeLinks are the NVLinks of a fakeDevice.
type fakeLinks struct{ d *fakeDevice }

func (f fakeLinks) NVLinkState(link int) (bool, error) {
	if err := f.d.fail(fmt.Sprintf("NVLinkState(%d)", link)); err != nil {
		return false, err
	}
	if err := f.d.fail("NVLinkState"); err != nil {
		return false, err
	}
	if link >= len(f.d.links) {
		return false, fmt.Errorf("nvmlDeviceGetNvLinkState(%d): %w", link, gpu.ErrInvalidArgument)
	}
	return f.d.links[link], nil
}

func (f fakeLinks) NVLinkVersion(int) (int, error) { return 6, f.d.fail("NVLinkVersion") }

func (f fakeLinks) NVLinkRemoteDeviceType(link int) (int, error) {
	if _, ok := f.d.remotes[link]; ok {
		return 0, f.d.fail("NVLinkRemoteDeviceType")
	}
	return 2, f.d.fail("NVLinkRemoteDeviceType")
}

func (f fakeLinks) NVLinkRemotePCIInfo(link int) (PCIInfo, error) {
	return PCIInfo{BusID: f.d.remotes[link]}, f.d.fail("NVLinkRemotePCIInfo")
}

func (f fakeLinks) FabricInfo() (FabricInfo, error) { return f.d.fabric, f.d.fail("FabricInfo") }

// fakeMIG is the MIG mode of a fakeDevice, which has no partitions: those are tested on simulated boards.
type fakeMIG struct {
	MIG
	d *fakeDevice
}

func (f fakeMIG) MIGMode() (current, pending bool, err error) {
	return f.d.mig, f.d.mig, f.d.fail("MIGMode")
}

func (f fakeMIG) GPUInstanceProfileInfo(enum int) (gpu.Profile, error) {
	if err := f.d.fail("GPUInstanceProfileInfo"); err != nil {
		return gpu.Profile{}, err
	}
	p, ok := f.d.profiles[enum]
	if !ok {
		return gpu.Profile{}, gpu.ErrNotSupported
	}
	p.Enum = enum
	return p, f.d.fail(fmt.Sprintf("GPUInstanceProfileInfo(%d)", enum))
}

func (f fakeMIG) GPUInstancePossiblePlacements(profileID int) ([]gpu.Placement, error) {
	if err := f.d.fail("GPUInstancePossiblePlacements"); err != nil {
		return nil, err
	}
	return f.d.placements[profileID], f.d.fail(fmt.Sprintf("GPUInstancePossiblePlacements(%d)", profileID))
}

func (f fakeMIG) SetMIGMode(bool) (activation, err error) { return nil, f.d.fail("SetMIGMode") }
