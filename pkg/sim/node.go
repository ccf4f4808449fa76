// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Node is a simulated node. It is safe for use by several goroutines.
type Node struct {
	spec     *spec
	specFile fileID // of the file that spec was read from
	root     string // empty: in memory
	state    *cell[nodeState]
	gpus     []*cell[gpuState]
	devices  []*Device

	inits  atomic.Int64
	open   sessions
	counts map[string]*atomic.Int64 // by name of the call; the map itself never changes
	sleep  func(time.Duration)

	trace func(call string, index int) // nil: nobody wants to know

	// listed are the GPUs that were there when the session began: NVML counts them once.
	listed atomic.Pointer[[]int]

	passed sync.Map // ID of a fault -> *atomic.Int64, calls that it let through
}

// options of New, Create and Open.
type options struct {
	seed           string
	driverVersion  string
	noDeviceNodes  bool
	passThrough    bool
	library        string
	executable     string
	programs       string
	files          []string
	devRoot        string
	flat           bool
	noControlNodes bool
	noModprobe     bool
	force          bool
	sleep          func(time.Duration)
	trace          io.Writer
}

// Option adjusts a node.
type Option func(*options)

// WithSeed varies UUIDs and serial numbers; nodes of the same model and seed are the same.
func WithSeed(seed string) Option { return func(o *options) { o.seed = seed } }

// WithDriverVersion replaces the driver version of the model, such as "570.133.20".
func WithDriverVersion(version string) Option { return func(o *options) { o.driverVersion = version } }

// WithPassThrough creates the node a virtual machine that whole GPUs are passed through to.
func WithPassThrough() Option { return func(o *options) { o.passThrough = true } }

// WithSleep replaces time.Sleep in calls that a fault makes slow.
func WithSleep(sleep func(time.Duration)) Option { return func(o *options) { o.sleep = sleep } }

// WithTrace writes a line for every NVML call when it begins: the function, and the index of the GPU or -1.
func WithTrace(w io.Writer) Option { return func(o *options) { o.trace = w } }

func newOptions(opts []Option) *options {
	o := &options{sleep: time.Sleep} //nolint:forbidigo // a fault that makes a call slow is there to sleep
	for _, opt := range opts {
		opt(o)
	}
	return o
}

// New creates a node in memory.
func New(model string, opts ...Option) (*Node, error) {
	o := newOptions(opts)
	s, err := newSpec(model, o)
	if err != nil {
		return nil, err
	}
	n := newNode(s, o)
	n.state = newCell(&nodeState{Boots: 1, BootID: bootID(s, 1)}, (*nodeState).clone)
	for range s.GPUs {
		n.gpus = append(n.gpus, newCell(&gpuState{}, (*gpuState).clone))
	}
	return n, nil
}

// stateDir is where a root keeps its state.
const stateDir = "var/lib/nvml-sim"

// Open opens the node that Create made under root.
func Open(root string, opts ...Option) (*Node, error) {
	o := newOptions(opts)
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open simulated node: %w", err)
	}
	dir := filepath.Join(root, stateDir)
	file, err := statFile(filepath.Join(dir, "node.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no simulated node under %s: make one with \"nvml-sim create --node hgx-h100 --root %s\": %w", root, root, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open simulated node: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if err != nil {
		return nil, fmt.Errorf("open simulated node: %w", err)
	}
	s, err := decodeSpec(data)
	if err != nil {
		return nil, fmt.Errorf("open simulated node under %s: %w", root, err)
	}
	n := newNode(s, o)
	n.root, n.specFile = root, file
	n.state = openCell(filepath.Join(dir, "state.json"), (*nodeState).clone, func(data []byte) (*nodeState, error) {
		return decodeNodeState(data, len(s.GPUs))
	})
	for i := range s.GPUs {
		board := n.devices[i].board
		c := openCell(gpuFile(dir, i), (*gpuState).clone, func(data []byte) (*gpuState, error) {
			return decodeGPUState(data, board)
		})
		if board.MIG != nil {
			caps := &capabilities{root: root, minor: s.GPUs[i].Minor, devices: s.DeviceNodes && s.DevRoot == ""}
			c.before, c.after = caps.appear, caps.vanish
		}
		c.stale, c.settle = n.abandoned, n.forget
		n.gpus = append(n.gpus, c)
	}
	return n, nil
}

// gpuFile is where the state of a GPU is kept.
func gpuFile(dir string, index int) string {
	return filepath.Join(dir, fmt.Sprintf("gpu-%d.json", index))
}

func newNode(s *spec, o *options) *Node {
	n := &Node{spec: s, sleep: o.sleep, counts: make(map[string]*atomic.Int64, len(callNames))}
	for _, name := range callNames {
		n.counts[name] = new(atomic.Int64)
	}
	if w := o.trace; w != nil {
		n.trace = func(call string, index int) { _, _ = fmt.Fprintf(w, "%s %d\n", call, index) } // one write a line
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		n.devices = append(n.devices, &Device{node: n, index: i, spec: g, board: &s.Boards[g.Board]})
	}
	return n
}

// Root is the directory the node lives under; empty for a node in memory.
func (n *Node) Root() string { return n.root }

// Model is the name of the node's model.
func (n *Node) Model() string { return n.spec.Name }

// BootID is the boot id of the node, as /proc/sys/kernel/random/boot_id would say.
func (n *Node) BootID() (string, error) {
	st, err := n.state.load()
	if err != nil {
		return "", err
	}
	return st.BootID, nil
}

// bootID is the boot id of the nth boot.
func bootID(s *spec, nth int) string {
	return uuidOf(fmt.Sprintf("boot/%s/%d", s.GPUs[0].UUID, nth))
}

// Calls reports how often an NVML function was called through this Node, failed calls included.
func (n *Node) Calls(function string) int64 {
	if c := n.counts[function]; c != nil {
		return c.Load()
	}
	return 0
}

// TotalCalls is the number of all NVML calls through this Node.
func (n *Node) TotalCalls() int64 {
	var total int64
	for _, name := range callNames {
		total += n.Calls(name)
	}
	return total
}

// ResetCalls sets the counts of calls to zero.
func (n *Node) ResetCalls() {
	for _, c := range n.counts {
		c.Store(0)
	}
}

// enter begins an NVML call on the GPU of that index, or on none (-1): it counts the call, lets faults have their
// way, and refuses where the library, the driver or the GPU is not there.
func (n *Node) enter(call string, index int) error {
	if c := n.counts[call]; c != nil {
		c.Add(1)
	}
	if n.trace != nil {
		n.trace(call, index)
	}
	if n.inits.Load() == 0 && call != callInit {
		return fail(call, CodeUninitialized, "nvmlInit_v2 was not called")
	}
	st, err := n.state.load()
	if err != nil {
		return fail(call, CodeUnknown, "%v", err)
	}
	if len(st.Faults) > 0 {
		if err := n.applyFaults(st, call, index); err != nil {
			return err
		}
	}
	if st.Unloaded {
		return fail(call, CodeDriverNotLoaded, "the driver of the simulated node was unloaded")
	}
	if index >= 0 && n.isLost(st, call, index) {
		return fail(call, CodeGPUIsLost, "GPU %d at %s fell off the bus", index, n.devices[index].spec.bdf())
	}
	if index >= 0 {
		if err := n.openSlot(index); err != nil {
			return fail(call, CodeUnknown, "%v", err)
		}
	}
	return nil
}

// Init begins a session (nvmlInit_v2). Sessions are counted: each needs its Shutdown.
func (n *Node) Init() error {
	if err := n.enter(callInit, -1); err != nil {
		return err
	}
	st, err := n.state.load()
	if err != nil {
		return fail(callInit, CodeUnknown, "%v", err)
	}
	if n.inits.Add(1) == 1 {
		n.list(st)
	}
	if err := n.openSlot(driverSlot); err != nil {
		return errors.Join(fail(callInit, CodeUnknown, "%v", err), n.end())
	}
	return nil
}

// Shutdown ends a session (nvmlShutdown).
func (n *Node) Shutdown() error {
	if err := n.enter("nvmlShutdown", -1); err != nil && !isCode(err, CodeDriverNotLoaded) {
		return err
	}
	return n.end()
}

// end ends one session; with the last, the driver and the GPUs are open no more.
func (n *Node) end() error {
	for {
		now := n.inits.Load()
		if now == 0 {
			return fail("nvmlShutdown", CodeUninitialized, "nvmlInit_v2 was not called")
		}
		if n.inits.CompareAndSwap(now, now-1) {
			if now == 1 {
				n.closeSlots()
			}
			return nil
		}
	}
}

// asError returns the NVML error that err is or wraps, or nil.
func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// isCode reports whether an error is an NVML error of that code.
func isCode(err error, code int) bool {
	e := asError(err)
	return e != nil && e.Code == code
}

// SystemDriverVersion is the version of the kernel driver, such as "580.95.05" (nvmlSystemGetDriverVersion).
func (n *Node) SystemDriverVersion() (string, error) {
	if err := n.enter("nvmlSystemGetDriverVersion", -1); err != nil {
		return "", err
	}
	return n.spec.DriverVersion, nil
}

// SystemNVMLVersion is the version of the library (nvmlSystemGetNVMLVersion).
func (n *Node) SystemNVMLVersion() (string, error) {
	if err := n.enter("nvmlSystemGetNVMLVersion", -1); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d.%s", n.spec.CUDAVersion/1000, n.spec.DriverVersion), nil
}

// SystemCUDADriverVersion is 1000*major + 10*minor (nvmlSystemGetCudaDriverVersion_v2).
func (n *Node) SystemCUDADriverVersion() (int, error) {
	if err := n.enter("nvmlSystemGetCudaDriverVersion_v2", -1); err != nil {
		return 0, err
	}
	return n.spec.CUDAVersion, nil
}

// DeviceCount is the number of GPUs (nvmlDeviceGetCount_v2). Lost GPUs count.
func (n *Node) DeviceCount() (int, error) {
	if err := n.enter("nvmlDeviceGetCount_v2", -1); err != nil {
		return 0, err
	}
	return len(n.enumerated()), nil
}

// DeviceByIndex returns a GPU (nvmlDeviceGetHandleByIndex_v2). Indexes follow PCI order.
func (n *Node) DeviceByIndex(index int) (*Device, error) {
	const call = "nvmlDeviceGetHandleByIndex_v2"
	listed := n.enumerated()
	if index < 0 || index >= len(listed) {
		if err := n.enter(call, -1); err != nil {
			return nil, err
		}
		return nil, fail(call, CodeInvalidArgument, "no GPU %d: the node has %d", index, len(listed))
	}
	d := n.devices[listed[index]]
	if err := n.enter(call, d.index); err != nil {
		return nil, err
	}
	return d, nil
}
