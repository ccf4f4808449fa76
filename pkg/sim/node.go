// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Node is a simulated node. It is safe for use by several goroutines.
type Node struct {
	*core
	faults *Faults

	// listed are the GPUs present at the start of the session: NVML counts them once.
	listed atomic.Pointer[[]int]
}

// core is the parts of a node.
type core struct {
	spec    *spec
	state   *cell[nodeState]
	gpus    []*cell[gpuState]
	devices []*Device
	files   *Files
	clients *Clients
	open    *sessions
	calls   *Calls
	now     func() time.Time
	// journal is nil for a node in memory.
	journal *journal
}

// checkIndex rejects invalid GPU indexes.
func (c *core) checkIndex(index int) error {
	if index < 0 || index >= len(c.devices) {
		return fmt.Errorf("no GPU %d: the node has %d, numbered from 0", index, len(c.devices))
	}
	return nil
}

// Calls counts the calls of NVML functions.
func (n *Node) Calls() *Calls { return n.calls }

// Faults make calls slow or fail.
func (n *Node) Faults() *Faults { return n.faults }

// Hardware simulates hardware events of GPUs.
func (n *Node) Hardware() Hardware { return Hardware{n.core, n.faults} }

// Driver is the kernel driver.
func (n *Node) Driver() Driver { return Driver{n.core} }

// Clients are the processes that use GPUs.
func (n *Node) Clients() *Clients { return n.clients }

// Files are those under the node's root.
func (n *Node) Files() *Files { return n.files }

// options of New, Create and Open.
type options struct {
	seed           string
	driverVersion  string
	noDeviceNodes  bool
	passThrough    bool
	firstMinor     int
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
	now            func() time.Time
	trace          io.Writer
}

// Option adjusts a node.
type Option func(*options)

// WithSeed varies UUIDs and serial numbers; nodes of the same model and seed are identical.
func WithSeed(seed string) Option { return func(o *options) { o.seed = seed } }

// WithDriverVersion replaces the driver version of the model, such as "570.133.20".
func WithDriverVersion(version string) Option { return func(o *options) { o.driverVersion = version } }

// WithPassThrough makes the node a virtual machine with whole GPUs passed through.
func WithPassThrough() Option { return func(o *options) { o.passThrough = true } }

// WithSleep replaces time.Sleep in calls that a fault makes slow.
func WithSleep(sleep func(time.Duration)) Option { return func(o *options) { o.sleep = sleep } }

// WithClock replaces time.Now in measurements.
func WithClock(now func() time.Time) Option { return func(o *options) { o.now = now } }

// WithTrace writes a line for every NVML call when it begins: the function, and the index of the GPU or -1.
func WithTrace(w io.Writer) Option { return func(o *options) { o.trace = w } }

func newOptions(opts []Option) *options {
	o := &options{sleep: time.Sleep, now: time.Now} //nolint:forbidigo // a slow call is simulated by sleeping
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
	n := newNode("", s, o)
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
	n := newNode(root, s, o)
	n.files.opened = file
	n.state = openCell(filepath.Join(dir, "state.json"), (*nodeState).clone, func(data []byte) (*nodeState, error) {
		return decodeNodeState(data, len(s.GPUs))
	})
	for i := range s.GPUs {
		board := n.devices[i].board
		c := openCell(gpuFile(dir, i), (*gpuState).clone, func(data []byte) (*gpuState, error) {
			return decodeGPUState(data, board)
		})
		if board.MIG != nil {
			caps := &capabilities{root: root, minor: s.GPUs[i].Minor}
			c.before, c.after = caps.appear, caps.vanish
		}
		c.stale, c.settle = n.clients.abandoned, func(st *gpuState) { n.clients.forget(board, st) }
		n.gpus = append(n.gpus, c)
	}
	(&journal{path: JournalFile(root)}).keep(n)
	return n, nil
}

// gpuFile is the file of a GPU's state.
func gpuFile(dir string, index int) string {
	return filepath.Join(dir, fmt.Sprintf("gpu-%d.json", index))
}

// newNode returns a node without its state; root is empty for one in memory.
func newNode(root string, s *spec, o *options) *Node {
	files := &Files{root: root, spec: s}
	c := &core{spec: s, files: files, open: &sessions{files: files}, calls: newCalls(o.trace), now: o.now}
	c.clients = &Clients{c}
	n := &Node{core: c, faults: &Faults{core: c, sleep: o.sleep}}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		n.devices = append(n.devices, &Device{&access{node: n, index: i, spec: g, board: &s.Boards[g.Board]}})
	}
	return n
}

// Root is the directory of the node; empty for one in memory.
func (n *Node) Root() string { return n.files.root }

// bootID is the boot id of the nth boot.
func bootID(s *spec, nth int) string {
	return uuidOf(fmt.Sprintf("boot/%s/%d", s.GPUs[0].UUID, nth))
}

// enter starts an NVML call on the GPU with an index, or on none (-1): it counts the call, applies faults, and fails if the
// library, the driver or the GPU is missing.
func (n *Node) enter(call string, index int) error {
	n.calls.begin(call, index)
	if n.open.inits.Load() == 0 && call != callInit {
		return fail(call, CodeUninitialized, "nvmlInit_v2 was not called")
	}
	st, err := n.state.load()
	if err != nil {
		return fail(call, CodeUnknown, "%v", err)
	}
	if len(st.Faults) > 0 {
		if err := n.faults.apply(st, call, index); err != nil {
			return err
		}
	}
	if st.Unloaded {
		return fail(call, CodeDriverNotLoaded, "the driver of the simulated node was unloaded")
	}
	if index >= 0 && st.isLost(call, index) {
		return fail(call, CodeGPUIsLost, "GPU %d at %s fell off the bus", index, n.devices[index].spec.bdf())
	}
	if index >= 0 {
		if err := n.open.openSlot(index); err != nil {
			return fail(call, CodeUnknown, "%v", err)
		}
	}
	return nil
}

// Init starts a session (nvmlInit_v2). Sessions are counted: each needs its Shutdown.
func (n *Node) Init() error {
	if err := n.enter(callInit, -1); err != nil {
		return err
	}
	st, err := n.state.load()
	if err != nil {
		return fail(callInit, CodeUnknown, "%v", err)
	}
	if n.open.inits.Add(1) == 1 {
		listed := st.present(len(n.devices))
		n.listed.Store(&listed)
	}
	if err := n.open.openSlot(driverSlot); err != nil {
		return errors.Join(fail(callInit, CodeUnknown, "%v", err), n.open.end())
	}
	return nil
}

// Shutdown ends a session (nvmlShutdown).
func (n *Node) Shutdown() error {
	if err := n.enter("nvmlShutdown", -1); err != nil && !isCode(err, CodeDriverNotLoaded) {
		return err
	}
	return n.open.end()
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
