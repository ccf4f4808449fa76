// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Options say where things are.
type Options struct {
	// Dir holds the lane's programs, as make gpu-lane builds it.
	Dir string
	// Out takes the results. What is in it stays.
	Out string
	// DriverRoot is the root of the driver's files, / or that of a driver container or of a simulated node.
	DriverRoot string
	// Output takes the table of checks.
	Output io.Writer
	// Self is the command that calls Enter.
	Self []string
}

// lane is one run.
type lane struct {
	reporter
	opts Options
	work string // a directory of this run's own, gone after it
	// rootHadTmp means that the driver root had a /tmp before.
	rootHadTmp bool
	commands   *transcript
	machine    *Machine
	// facts are NVML's answers by the time at which it was asked.
	facts  map[string]Facts
	boards []board
	// node is what Cleave has found; nil where it found nothing.
	node *gpu.Node
	// cudaWorks means that a CUDA program runs here; cuda is what it saw without MPS.
	cudaWorks bool
	cuda      baseline
}

// Run does all of it. The report says what failed; an error is the lane's own, or what it could not clean up.
func Run(ctx context.Context, opts Options) (_ *Report, err error) {
	opts.DriverRoot = filepath.Clean(opts.DriverRoot)
	l, err := newLane(opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	l.report.Started, l.report.DriverRoot, l.report.Facts = time.Now(), opts.DriverRoot, map[string]any{}
	l.lookAround(ctx)
	if l.readBoards(ctx) {
		discovery{l}.compare(ctx)
		injection{l}.try(ctx)
		l.mps(ctx)
		l.guard(ctx)
	}
	if ctx.Err() != nil {
		l.check("lane", "time", func() (string, error) { return "", fmt.Errorf("it was cut short: %w", context.Cause(ctx)) })
	}
	l.report.Seconds = time.Since(l.report.Started).Seconds()
	l.finish()
	return &l.report, l.save()
}

func newLane(opts Options) (*lane, error) {
	if err := os.MkdirAll(opts.Out, 0o755); err != nil {
		return nil, fmt.Errorf("create the directory of results: %w", err)
	}
	// Not TMPDIR: sockets are made in it, whose paths have to be short.
	work, err := os.MkdirTemp("/tmp", "gpu-lane-")
	if err != nil {
		return nil, fmt.Errorf("create a directory to work in: %w", err)
	}
	l := &lane{reporter: reporter{to: opts.Output}, opts: opts, work: work, facts: map[string]Facts{}}
	_, err = os.Stat(filepath.Join(opts.DriverRoot, "tmp"))
	l.rootHadTmp = err == nil
	if err := l.prepare(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(work))
	}
	return l, nil
}

// prepare unpacks the programs and opens the transcript.
func (l *lane) prepare() error {
	if err := os.Chmod(l.work, 0o755); err != nil { // programs of other users run from it
		return fmt.Errorf("open the directory to work in: %w", err)
	}
	for _, name := range []string{"cleave.gz", "cleave-node.gz", "cuda-probe", "nvml-probe"} {
		if err := unpack(filepath.Join(l.opts.Dir, name), l.path(strings.TrimSuffix(name, ".gz"))); err != nil {
			return err
		}
	}
	to, err := os.Create(l.out("commands.txt"))
	if err != nil {
		return fmt.Errorf("create the transcript: %w", err)
	}
	l.commands = &transcript{to: to}
	// What Cleave's own packages say in this process goes there too.
	klog.LogToStderr(false)
	klog.SetOutput(l.commands)
	var level klog.Level
	return level.Set("4")
}

// close removes what the run made.
func (l *lane) close() error {
	klog.Flush()
	if err := errors.Join(os.RemoveAll(l.work), l.tidyRoot()); err != nil {
		return fmt.Errorf("remove the directory that was worked in: %w", err)
	}
	return nil
}

// tidyRoot removes the empty directories, below another driver root, on which the supervisor mounted those of its daemon: it
// leaves the ones above its own.
func (l *lane) tidyRoot() error {
	if l.opts.DriverRoot == "/" {
		return nil
	}
	dirs := []string{filepath.Join(l.opts.DriverRoot, l.work)}
	if !l.rootHadTmp {
		dirs = append(dirs, filepath.Dir(dirs[0]))
	}
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// path is a file of the run, out one of its results.
func (l *lane) path(name string) string { return filepath.Join(l.work, name) }
func (l *lane) out(name string) string  { return filepath.Join(l.opts.Out, name) }

// cleave is a run of the program for people.
func (l *lane) cleave(args ...string) *exec.Cmd {
	return exec.Command(l.path("cleave"), args...) //nolint:noctx // runWithin bounds it, or the supervisor's keeper
}

// cleaveNode is a run of the program of nodes.
func (l *lane) cleaveNode(args ...string) *exec.Cmd {
	return exec.Command(l.path("cleave-node"), args...) //nolint:noctx // as above
}

// hardware are the flags by which both find this machine's GPUs.
func (l *lane) hardware() []string {
	flags := []string{"--driver-root", l.opts.DriverRoot}
	if l.machine.Stray {
		flags = append(flags, "--nvml-library", l.machine.NVML)
	}
	return flags
}

// lookAround says what there is, before anything is asked of it.
func (l *lane) lookAround(ctx context.Context) {
	l.note("machine", "found", func() (string, error) {
		l.machine = look(l.opts.DriverRoot)
		l.report.Machine = l.machine
		version, err := l.commands.run(ctx, l.cleave("--version"))
		l.report.Cleave = strings.TrimSpace(string(version))
		if err != nil {
			return "", fmt.Errorf("this machine does not run cleave: %w", err)
		}
		return l.machine.describe(), nil
	})
	for _, file := range []string{"/proc/version", "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/devices"} {
		l.commands.file(file)
	}
	for _, file := range []string{"version", "params"} {
		l.commands.file(filepath.Join(procfs(l.opts.DriverRoot), "driver/nvidia", file))
	}
	devices, _ := filepath.Glob(filepath.Join(l.opts.DriverRoot, "dev/nvidia*")) // the pattern is good
	fmt.Fprintf(l.commands, "device files: %s\n\n", strings.Join(devices, " "))
}

// readBoards asks NVML, without Cleave, for all that Cleave asks.
func (l *lane) readBoards(ctx context.Context) bool {
	return l.check("machine", "gpus", func() (string, error) {
		if l.machine.NVML == "" {
			return "", skipf("no libnvidia-ml.so.1 under %s: no NVIDIA driver here", l.opts.DriverRoot)
		}
		facts, err := l.askNVML(ctx, "before")
		if err != nil {
			return "", err
		}
		if init := facts.find(-1, "nvmlInit_v2", ""); init != nil && init.Code != 0 {
			return "", skipf("NVML does not start: %s", init.Meaning)
		}
		if l.boards, err = facts.boards(); err != nil {
			return "", err
		}
		if len(l.boards) == 0 {
			return "", skipf("the driver has no GPU")
		}
		var where []string
		for _, b := range l.boards {
			where = append(where, b.pci.String())
		}
		return fmt.Sprintf("%d x %s at %s; %d answers of NVML are in nvml.json", len(l.boards), l.boards[0].name,
			strings.Join(where, ", "), len(facts)), nil
	})
}

// askNVML runs nvml-probe and keeps its answers under a name.
func (l *lane) askNVML(ctx context.Context, when string) (Facts, error) {
	c := exec.Command(l.path("nvml-probe"), l.machine.NVML, "/sys/fs/cgroup") //nolint:noctx // runWithin bounds it
	output, err := l.commands.quietly(ctx, c)                                 // nvml.json has it
	facts, parsed := parseFacts(output)
	l.facts[when] = facts
	if err := errors.Join(err, parsed); err != nil {
		return nil, fmt.Errorf("ask NVML: %w (its last answer: %s)", err, facts.last())
	}
	return facts, nil
}

// guard looks whether the GPUs are as they were.
func (l *lane) guard(ctx context.Context) {
	l.check("guard", "unchanged", func() (string, error) {
		after, err := l.askNVML(context.WithoutCancel(ctx), "after")
		if err != nil {
			return "", err
		}
		if list := changes(l.facts["before"], after); len(list) > 0 {
			return "", fmt.Errorf("the run changed GPUs, or another process did meanwhile: %s", strings.Join(list, "; "))
		}
		return "compute mode, MIG mode, persistence, ECC, power limit, application clocks and partitions are as before", nil
	})
}

// save writes the results, in few files: a lent machine gives few back.
func (l *lane) save() error {
	var errs []error
	for name, v := range map[string]any{"report.json": &l.report, "nvml.json": l.facts} {
		data, err := encode(v)
		if err == nil {
			err = os.WriteFile(l.out(name), data, 0o644)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	fmt.Fprintf(l.to, "results: %s\n", l.opts.Out)
	return nil
}
