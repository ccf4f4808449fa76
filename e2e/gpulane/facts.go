// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// maxLine bounds a line of a probe's output, in bytes.
const maxLine = 1 << 20

// Call is one call of the driver's management library, as it answered.
type Call struct {
	// GPU is the NVML index, -1 for calls that are of none.
	GPU     int    `json:"gpu"`
	Call    string `json:"call"`
	Args    string `json:"args,omitempty"`
	Code    int    `json:"code"`
	Meaning string `json:"meaning"`
	// Value is missing where the call failed.
	Value json.RawMessage `json:"value,omitempty"`
}

// Facts are all answers of one run of nvml-probe.
type Facts []Call

// parseFacts reads what nvml-probe printed.
func parseFacts(output []byte) (Facts, error) {
	var facts Facts
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var c Call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return facts, fmt.Errorf("read what nvml-probe printed, %.100q: %w", lines.Text(), err)
		}
		facts = append(facts, c)
	}
	return facts, lines.Err()
}

// find gives the answer to a call, nil if it was not made.
func (f Facts) find(gpuIndex int, call, args string) *Call {
	for i := range f {
		if f[i].GPU == gpuIndex && f[i].Call == call && f[i].Args == args {
			return &f[i]
		}
	}
	return nil
}

// value decodes the answer to a call; not ok where it failed or was not made.
func value[T any](f Facts, gpuIndex int, call, args string) (v T, ok bool) {
	c := f.find(gpuIndex, call, args)
	return v, c != nil && c.Code == 0 && json.Unmarshal(c.Value, &v) == nil
}

// board is a GPU as NVML reports it without Cleave in between.
type board struct {
	index      int
	uuid, name string
	pci        gpu.PCIAddress
	// total and free memory in bytes. reserved is what the driver keeps of total, -1 where it does not say.
	total, free, reserved int64
	computeMode           int
	mig                   bool
	capability            string
	// processes that compute on it.
	processes []gpuProcess
	// profiles are the placements of partitions by profile ID.
	profiles map[int][]gpu.Placement
}

type gpuProcess struct {
	PID    int    `json:"pid"`
	Memory uint64 `json:"memory"`
}

// boards reads the GPUs out of the answers. One without an identity is an error.
func (f Facts) boards() ([]board, error) {
	count, ok := value[int](f, -1, "nvmlDeviceGetCount_v2", "")
	if !ok {
		return nil, fmt.Errorf("NVML does not count its GPUs: %s", f.last())
	}
	boards := make([]board, 0, count)
	for i := range count {
		b := board{index: i, reserved: -1, profiles: f.placements(i)}
		bus, ok1 := value[string](f, i, "nvmlDeviceGetPciInfo_v3", "")
		uuid, ok2 := value[string](f, i, "nvmlDeviceGetUUID", "")
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("NVML does not identify GPU %d: %s", i, f.last())
		}
		var err error
		if b.pci, err = gpu.ParsePCIAddress(bus); err != nil {
			return nil, err
		}
		b.uuid = uuid
		b.name, _ = value[string](f, i, "nvmlDeviceGetName", "")
		b.capability, _ = value[string](f, i, "nvmlDeviceGetCudaComputeCapability", "")
		b.computeMode, _ = value[int](f, i, "nvmlDeviceGetComputeMode", "")
		b.processes, _ = value[[]gpuProcess](f, i, "nvmlDeviceGetComputeRunningProcesses_v3", "")
		mig, _ := value[struct{ Current int }](f, i, "nvmlDeviceGetMigMode", "")
		b.mig = mig.Current == 1
		type memory struct{ Total, Reserved, Free int64 }
		if m, ok := value[memory](f, i, "nvmlDeviceGetMemoryInfo_v2", ""); ok {
			b.total, b.reserved, b.free = m.Total, m.Reserved, m.Free
		} else if m, ok := value[memory](f, i, "nvmlDeviceGetMemoryInfo", ""); ok {
			b.total, b.free = m.Total, m.Free
		}
		boards = append(boards, b)
	}
	return boards, nil
}

// usable is the memory that is not the driver's own.
func (b *board) usable() int64 { return b.total - max(b.reserved, 0) }

// placements are where a GPU's partitions can lie, by profile ID; several profiles of NVML can have one ID.
func (f Facts) placements(gpuIndex int) map[int][]gpu.Placement {
	found := map[int][]gpu.Placement{}
	for _, c := range f {
		if c.GPU != gpuIndex || c.Call != "nvmlDeviceGetGpuInstancePossiblePlacements_v2" || c.Code != 0 {
			continue
		}
		id, err := strconv.Atoi(c.Args)
		var places []gpu.Placement
		if err == nil && json.Unmarshal(c.Value, &places) == nil && len(places) > 0 {
			found[id] = places
		}
	}
	return found
}

// last is the last answer, which says why there are no more.
func (f Facts) last() string {
	if len(f) == 0 {
		return "it said nothing"
	}
	c := f[len(f)-1]
	return fmt.Sprintf("%s: %s", c.Call, c.Meaning)
}

// settled are the calls that report what the lane must leave as it was.
var settled = []string{
	"nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEccMode",
	"nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetGpuInstances",
	"nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID",
}

// changes lists what is not as it was.
func changes(before, after Facts) []string {
	var list []string
	for _, was := range before {
		if !slices.Contains(settled, was.Call) {
			continue
		}
		what := fmt.Sprintf("GPU %d %s(%s)", was.GPU, was.Call, was.Args)
		is := after.find(was.GPU, was.Call, was.Args)
		switch {
		case is == nil:
			list = append(list, what+" was answered before and is not now")
		case is.Code != was.Code || !bytes.Equal(is.Value, was.Value):
			list = append(list, fmt.Sprintf("%s was %s%s and is %s%s", what, was.Meaning, spaced(was.Value), is.Meaning, spaced(is.Value)))
		}
	}
	return list
}

func spaced(v json.RawMessage) string {
	if len(v) == 0 {
		return ""
	}
	return " " + string(v)
}
