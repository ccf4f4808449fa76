// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// Run runs a program of the driver, by its path below the driver's root, and returns what it prints.
type Run func(ctx context.Context, root driverroot.Root, program string, args ...string) (output []byte, err error)

// RunProgram is the Run that runs programs.
func RunProgram(ctx context.Context, root driverroot.Root, program string, args ...string) ([]byte, error) {
	return root.Run(ctx, program, args...)
}

// Time limits of a run. A GPU is initialised when nvidia-smi opens it, which takes seconds, and a reset takes some more.
const (
	shortRun = 20 * time.Second // the kubelet waits 45 s for a claim
	longRun  = 60 * time.Second
	// exitDelay is how long a run may take to end once it was killed. After that it hangs in the driver.
	exitDelay = 3 * time.Second
)

// Tool runs nvidia-smi.
type Tool struct {
	roots []driverroot.Root
	found atomic.Pointer[driverroot.Root]
	run   Run
	queue queue
}

// New returns a Tool that looks for the program in the given roots, at least one.
func New(roots []driverroot.Root, run Run) *Tool { return &Tool{roots: roots, run: run} }

// Found sets the root of the running driver: others may have programs of a driver that is not running.
func (t *Tool) Found(root driverroot.Root) { t.found.Store(&root) }

// Root is the root of the running driver, or the first candidate.
func (t *Tool) Root() driverroot.Root {
	if found := t.found.Load(); found != nil {
		return *found
	}
	return t.roots[0]
}

// State is what nvidia-smi reports of a GPU.
type State struct {
	// Current is the MIG mode, Pending that after the next reset; both are off on a GPU that has none.
	Current, Pending bool
	// Persistence is the persistence mode, in which the driver keeps the GPU open.
	Persistence bool
}

// queried are the fields of a State, in its order.
const queried = "mig.mode.current,mig.mode.pending,persistence_mode"

// Query asks for the state of the GPU at an address. With an error, the state has what could be read: of a GPU that has failed, nvidia-smi
// may print "[GPU requires reset]" instead.
func (t *Tool) Query(ctx context.Context, pci gpu.PCIAddress) (State, error) {
	output, err := t.call(ctx, shortRun, pci, "--query-gpu="+queried, "--format=csv,noheader")
	if err != nil {
		return State{}, err
	}
	var st State
	for line := range strings.Lines(string(output)) { // warnings may come before and after
		read, complete := parse(line)
		if complete {
			return read, nil
		}
		if read != (State{}) {
			st = read
		}
	}
	return st, fmt.Errorf("nvidia-smi --query-gpu=%s of the GPU at %s printed %q", queried, pci, driverroot.OneLine(output))
}

// parse reads a State from a line of output, and reports whether the line has all of it.
func parse(line string) (st State, complete bool) {
	words := strings.Split(line, ",")
	fields := []*bool{&st.Current, &st.Pending, &st.Persistence}
	if len(words) != len(fields) {
		return State{}, false
	}
	complete = true
	for i, word := range words {
		word = strings.TrimSpace(word)
		*fields[i] = word == "Enabled"
		complete = complete && (*fields[i] || word == "Disabled" || word == "[N/A]" && i < len(words)-1)
	}
	return st, complete
}

// SetMode asks for a MIG mode. If nothing has the GPU open, the driver resets it for that; otherwise the mode is pending, which is
// no error: use Query.
func (t *Tool) SetMode(ctx context.Context, pci gpu.PCIAddress, enable bool) (said string, err error) {
	output, err := t.call(ctx, longRun, pci, "-mig", digit(enable))
	return driverroot.OneLine(output), err
}

// SetPersistence switches the persistence mode.
func (t *Tool) SetPersistence(ctx context.Context, pci gpu.PCIAddress, on bool) error {
	_, err := t.call(ctx, shortRun, pci, "-pm", digit(on))
	return err
}

// Reset resets the GPU.
func (t *Tool) Reset(ctx context.Context, pci gpu.PCIAddress) error {
	_, err := t.call(ctx, longRun, pci, "--gpu-reset")
	return err
}

func digit(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// call runs nvidia-smi for one GPU that this process may have closed, without concurrent runs.
func (t *Tool) call(ctx context.Context, limit time.Duration, pci gpu.PCIAddress, args ...string) ([]byte, error) {
	return t.start(ctx, limit, &program{pci: pci, alone: true}, append([]string{"-i", pci.String()}, args...)...)
}

// start runs nvidia-smi. A run that does not end when it is killed is abandoned with gpu.ErrHangs. Until it has ended, no run
// starts for the same GPU or alone.
func (t *Tool) start(ctx context.Context, limit time.Duration, p *program, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p.what = "nvidia-smi " + strings.Join(args, " ")
	if err := t.queue.begin(ctx, p); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(6).Info("Running nvidia-smi", "args", args)
	answers := make(chan answer, 1)
	root, path := driverroot.FindSMI(t.where())
	go func() {
		var a answer
		a.output, a.err = t.run(ctx, root, path, args...)
		t.queue.end(ctx, p)
		answers <- a
	}()
	a, err := t.await(ctx, p, answers)
	if err == nil && a.err != nil {
		err = fmt.Errorf("%s: %w: %s", p.what, a.err, driverroot.OneLine(a.output))
	}
	return a.output, err
}

// answer is how a run ended.
type answer struct {
	output []byte
	err    error
}

// await waits for the end of a run, which is killed when ctx ends.
func (t *Tool) await(ctx context.Context, p *program, answers <-chan answer) (answer, error) {
	select {
	case a := <-answers:
		return a, nil
	case <-ctx.Done():
	}
	timer := time.NewTimer(exitDelay)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a, nil
	case <-timer.C:
		return answer{}, t.queue.expire(ctx, p)
	}
}

// where are the roots to look for the program in.
func (t *Tool) where() []driverroot.Root {
	if found := t.found.Load(); found != nil {
		return []driverroot.Root{*found}
	}
	return t.roots
}
