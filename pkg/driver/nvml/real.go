// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// check converts the result of an NVML call into an error that names the call and, if callers branch on it, wraps a
// sentinel of pkg/domain/gpu.
func check(call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	if sentinel, ok := sentinels[ret]; ok {
		return fmt.Errorf("%s: %w", call, sentinel)
	}
	return fmt.Errorf("%s: %w", call, errors.New(strings.ToLower(ret.Error())))
}

// result checks the result of an NVML call, which its argument names: result(dev.GetUUID())("nvmlDeviceGetUUID").
func result[T any](v T, ret nvml.Return) func(call string) (T, error) {
	return func(call string) (T, error) { return v, check(call, ret) }
}

// number is result for the enums of go-nvml.
func number[T ~int | ~int32 | ~uint32](v T, ret nvml.Return) func(call string) (int, error) {
	return result(int(v), ret)
}

var sentinels = map[nvml.Return]error{
	nvml.ERROR_NOT_SUPPORTED:          gpu.ErrNotSupported,
	nvml.ERROR_FUNCTION_NOT_FOUND:     gpu.ErrNotSupported, // an older driver; callers treat both alike
	nvml.ERROR_NOT_FOUND:              gpu.ErrNotFound,
	nvml.ERROR_INVALID_ARGUMENT:       gpu.ErrInvalidArgument,
	nvml.ERROR_IN_USE:                 gpu.ErrInUse,
	nvml.ERROR_INSUFFICIENT_RESOURCES: gpu.ErrInsufficientResources,
	nvml.ERROR_GPU_IS_LOST:            gpu.ErrLost,
	nvml.ERROR_DRIVER_NOT_LOADED:      gpu.ErrDriverNotLoaded,
	nvml.ERROR_UNINITIALIZED:          gpu.ErrDriverNotLoaded,
	nvml.ERROR_LIBRARY_NOT_FOUND:      gpu.ErrLibraryNotFound,
	nvml.ERROR_RESET_REQUIRED:         gpu.ErrResetRequired,
}

// realLibrary is libnvidia-ml.so.1 behind go-nvml.
type realLibrary struct {
	lib  nvml.Interface
	path string
}

// newRealLibrary uses the library at path. Init opens it.
func newRealLibrary(path string) *realLibrary {
	return &realLibrary{lib: nvml.New(nvml.WithLibraryPath(path)), path: path}
}

func (l *realLibrary) Init() error     { return check("nvmlInit", l.lib.Init()) }
func (l *realLibrary) Shutdown() error { return check("nvmlShutdown", l.lib.Shutdown()) }

func (l *realLibrary) SystemDriverVersion() (string, error) {
	return result(l.lib.SystemGetDriverVersion())("nvmlSystemGetDriverVersion")
}

// SystemCUDADriverVersion asks libcuda.so.1, which NVML opens by that name. In a container the loader does not know the directory
// of the driver, and NVML answers NOT_FOUND (driver 580.159.04 on an H100). So libcuda is first opened by its path next to NVML:
// the loader then finds it by its SONAME.
func (l *realLibrary) SystemCUDADriverVersion() (int, error) {
	cuda := dl.New(filepath.Join(filepath.Dir(l.path), "libcuda.so.1"), dl.RTLD_LAZY)
	if cuda.Open() == nil {
		defer func() { _ = cuda.Close() }() // NVML has its own handle for as long as it needs one
	}
	return result(l.lib.SystemGetCudaDriverVersion_v2())("nvmlSystemGetCudaDriverVersion_v2")
}

func (l *realLibrary) ConfidentialComputing() (bool, error) {
	const call = "nvmlSystemGetConfComputeState"
	if err := functions(l.HasFunction).require(call); err != nil {
		return false, err
	}
	state, err := result(l.lib.SystemGetConfComputeState())(call)
	if err != nil || state.CcFeature == nvml.CC_SYSTEM_FEATURE_ENABLED || !l.HasFunction("nvmlSystemGetConfComputeSettings") {
		return err == nil && state.CcFeature == nvml.CC_SYSTEM_FEATURE_ENABLED, err
	}
	settings, ret := l.lib.SystemGetConfComputeSettings()
	return ret == nvml.SUCCESS && settings.MultiGpuMode == nvml.CC_SYSTEM_MULTIGPU_PROTECTED_PCIE, nil
}

func (l *realLibrary) AcceptsWork() (bool, error) {
	const call = "nvmlSystemGetConfComputeGpusReadyState"
	if err := functions(l.HasFunction).require(call); err != nil {
		return false, err
	}
	accepts, err := result(l.lib.SystemGetConfComputeGpusReadyState())(call)
	return accepts == nvml.CC_ACCEPTING_CLIENT_REQUESTS_TRUE, err
}

func (l *realLibrary) DeviceCount() (int, error) {
	return result(l.lib.DeviceGetCount())("nvmlDeviceGetCount")
}

func (l *realLibrary) DeviceByIndex(index int) (Device, error) {
	d, ret := l.lib.DeviceGetHandleByIndex(index)
	if err := check(fmt.Sprintf("nvmlDeviceGetHandleByIndex(%d)", index), ret); err != nil {
		return nil, err
	}
	return realDevice{lib: l.lib, dev: d, has: l.HasFunction}, nil
}

func (l *realLibrary) DeviceByPCI(pci gpu.PCIAddress) (Device, error) {
	d, ret := l.lib.DeviceGetHandleByPciBusId(pci.String())
	if err := check(fmt.Sprintf("nvmlDeviceGetHandleByPciBusId(%s)", pci), ret); err != nil {
		return nil, err
	}
	return realDevice{lib: l.lib, dev: d, has: l.HasFunction}, nil
}

// HasFunction looks the symbol up.
func (l *realLibrary) HasFunction(name string) bool {
	return l.lib.Extensions().LookupSymbol(name) == nil
}

// functions reports whether the driver's library has a function.
type functions func(name string) bool

// require returns an error if the driver's library lacks a function, as calling it would abort the process.
func (has functions) require(function string) error {
	if has(function) {
		return nil
	}
	return check(function, nvml.ERROR_FUNCTION_NOT_FOUND)
}

// realDevice is an nvmlDevice_t.
type realDevice struct {
	lib nvml.Interface
	dev nvml.Device
	has functions
}

func (d realDevice) Links() Links { return realLinks{d.dev, d.has} }
func (d realDevice) MIG() MIG     { return realMIG{d.dev} }
func (d realDevice) Use() Use     { return realUse(d) }

func (d realDevice) UUID() (string, error) {
	return result(d.dev.GetUUID())("nvmlDeviceGetUUID")
}

func (d realDevice) MinorNumber() (int, error) {
	return result(d.dev.GetMinorNumber())("nvmlDeviceGetMinorNumber")
}

func (d realDevice) PCIInfo() (PCIInfo, error) {
	info, ret := d.dev.GetPciInfo()
	return pciInfo(&info), check("nvmlDeviceGetPciInfo", ret)
}

func pciInfo(info *nvml.PciInfo) PCIInfo {
	var raw []byte
	for _, c := range info.BusId {
		raw = append(raw, byte(c))
	}
	id, _, _ := strings.Cut(string(raw), "\x00")
	return PCIInfo{BusID: id, DeviceID: info.PciDeviceId, SubsystemID: info.PciSubSystemId}
}

func (d realDevice) Name() (string, error) {
	return result(d.dev.GetName())("nvmlDeviceGetName")
}

func (d realDevice) Brand() (int, error) {
	return number(d.dev.GetBrand())("nvmlDeviceGetBrand")
}

func (d realDevice) Architecture() (int, error) {
	return number(d.dev.GetArchitecture())("nvmlDeviceGetArchitecture")
}

func (d realDevice) CUDAComputeCapability() (major, minor int, err error) {
	major, minor, ret := d.dev.GetCudaComputeCapability()
	return major, minor, check("nvmlDeviceGetCudaComputeCapability", ret)
}

func (d realDevice) MemoryTotal() (uint64, error) {
	m, ret := d.dev.GetMemoryInfo()
	return m.Total, check("nvmlDeviceGetMemoryInfo", ret)
}

func (d realDevice) MemoryTotalReserved() (total, reserved uint64, err error) {
	const function = "nvmlDeviceGetMemoryInfo_v2"
	if err := d.has.require(function); err != nil {
		return 0, 0, err
	}
	m, ret := d.dev.GetMemoryInfo_v2()
	return m.Total, m.Reserved, check(function, ret)
}

func (d realDevice) ECCMode() (current, pending bool, err error) {
	c, p, ret := d.dev.GetEccMode()
	return c == nvml.FEATURE_ENABLED, p == nvml.FEATURE_ENABLED, check("nvmlDeviceGetEccMode", ret)
}

func (d realDevice) AddressingMode() (int, error) {
	const function = "nvmlDeviceGetAddressingMode"
	if err := d.has.require(function); err != nil {
		return 0, err
	}
	m, ret := d.dev.GetAddressingMode()
	return int(m.Value), check(function, ret)
}

func (d realDevice) VirtualizationMode() (int, error) {
	return number(d.dev.GetVirtualizationMode())("nvmlDeviceGetVirtualizationMode")
}

func (d realDevice) Temperature() error {
	_, ret := d.dev.GetTemperature(nvml.TEMPERATURE_GPU)
	return check("nvmlDeviceGetTemperature", ret)
}

func (d realDevice) RunningProcesses() ([]int, error) {
	compute, ret := d.dev.GetComputeRunningProcesses()
	if err := check("nvmlDeviceGetComputeRunningProcesses", ret); err != nil {
		return nil, err
	}
	graphics, ret := d.dev.GetGraphicsRunningProcesses()
	if err := check("nvmlDeviceGetGraphicsRunningProcesses", ret); err != nil && !errors.Is(err, gpu.ErrNotSupported) {
		return nil, err
	}
	pids := convert(append(compute, graphics...), func(p nvml.ProcessInfo) int { return int(p.Pid) })
	slices.Sort(pids)
	return slices.Compact(pids), nil
}
