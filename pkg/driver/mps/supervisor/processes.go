// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// controlProgram is the control daemon, and its client.
const controlProgram = "nvidia-cuda-mps-control"

// maxAnswer bounds a control client's output, in bytes.
const maxAnswer = 64 << 10

// Processes is the Daemons of the operating system.
type Processes struct {
	// DriverRoots are where the driver may be, as this process sees them, one at least.
	DriverRoots []string
	// Running finds the one of the running driver: others may have programs of a driver that is not running. Nil does not.
	Running func(ctx context.Context) (string, error)
	// Self is the command that calls Enter: this program and its subcommand.
	Self []string
	// Cgroup as Config.DaemonCgroup.
	Cgroup string
}

// sandbox is the program's environment.
func (p Processes) sandbox(d Daemon, args ...string) sandbox {
	s := sandbox{
		Root: cmp.Or(d.Root, p.root()), Pipe: d.paths.pipe, Log: d.paths.log, Program: controlProgram, Args: args,
		Env: []string{
			"PATH=" + searchPath,
			"CUDA_VISIBLE_DEVICES=" + d.UUID,
			pipeVariable + d.paths.pipe,
			"CUDA_MPS_LOG_DIRECTORY=" + d.paths.log,
		},
	}
	s.stayOutside()
	return s
}

// stayOutside runs a program in the supervisor's own root if the driver's root lacks device nodes or a C library, as on GKE. The
// daemon finds the server by PATH, and both the driver's libraries by LD_LIBRARY_PATH (NVIDIA's DRA driver,
// mps-control-daemon.tmpl.yaml).
func (s *sandbox) stayOutside() {
	root := driverroot.Root{Host: s.Root, Here: s.Root}
	program, found := root.Find(s.Program)
	if s.Root == "/" || !found || root.Entered(program) {
		return
	}
	s.Root, s.Search = "/", root.ProgramPath()
	s.Env[0] = "PATH=" + s.Search + ":" + searchPath
	if libraries := root.LibraryPath(); libraries != "" {
		s.Env = append(s.Env, "LD_LIBRARY_PATH="+libraries)
	}
}

// Root is the root of the running driver or, if that is unknown or has no MPS, the first with the MPS program.
func (p Processes) Root(ctx context.Context) string {
	if p.Running == nil || len(p.DriverRoots) == 1 {
		return p.root()
	}
	root, err := p.Running(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("Cannot find the root of the running driver; using the first with MPS", "reason", err.Error())
		return p.root()
	}
	if !hasProgram(root) {
		return p.root()
	}
	return root
}

// hasProgram reports whether a root has the MPS program. It may be a link that resolves only inside the root.
func hasProgram(root string) bool {
	return slices.ContainsFunc(filepath.SplitList(searchPath), func(dir string) bool {
		_, err := os.Lstat(filepath.Join(root, dir, controlProgram))
		return err == nil
	})
}

// root is the first driver root with the MPS program; without one, the first root, which the error then names.
func (p Processes) root() string {
	if at := slices.IndexFunc(p.DriverRoots, hasProgram); at >= 0 {
		return p.DriverRoots[at]
	}
	return p.DriverRoots[0]
}

const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY="

// Start creates the process in its own session, where it waits for its instructions.
func (p Processes) Start(ctx context.Context, d Daemon, record func(ProcessID) error) (_ Process, err error) {
	s := p.sandbox(d, "-f", "-multiuser-server")
	s.Shm = d.paths.shm
	if s.Cgroup, err = p.makeCgroup(d); err != nil {
		klog.FromContext(ctx).Error(err,
			"Leaving MPS control daemon in the supervisor's cgroup: a container runtime kills it with the supervisor", "gpu", d.GPU)
	}
	output, err := os.OpenFile(filepath.Join(d.paths.log, outputFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the daemon's output: %w", err)
	}
	defer output.Close()
	command := exec.Command(p.Self[0], append(p.Self[1:], d.GPU)...) // it outlives every context
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	instructions, err := startSandboxed(command)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", controlProgram, err)
	}
	defer instructions.Close() // if a step fails, without instructions: the process then exits
	id := ProcessID{PID: command.Process.Pid}
	if id.Start, err = startTime(id.PID); err == nil {
		err = record(id)
	}
	var process *watched
	if err == nil {
		process, err = watchProcess(id, command)
	}
	if err != nil {
		return nil, errors.Join(err, instructions.Close(), ignoreExit(command.Wait()))
	}
	klog.FromContext(ctx).V(6).Info("Starting the MPS control daemon", "gpu", d.GPU, "pid", id.PID, "root", s.Root, "cgroup", s.Cgroup)
	if err := json.NewEncoder(instructions).Encode(s); err != nil {
		return nil, errors.Join(fmt.Errorf("instruct process %d: %w", id.PID, err), process.Kill())
	}
	return process, nil
}

// startSandboxed starts a command that calls Enter, and returns where to write its instructions.
func startSandboxed(command *exec.Cmd) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	command.ExtraFiles = []*os.File{read} // sandboxFD
	if err := command.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return write, nil
}

// ignoreExit drops errors about a process's exit status.
func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil
	}
	return err
}

// Adopt finds a daemon by its id.
func (p Processes) Adopt(id ProcessID) (Process, error) {
	w, err := watchProcess(id, nil)
	if err != nil {
		return nil, err // not a nil *watched
	}
	return w, nil
}

// Ask runs the control program with commands on its input. It is ended with ctx.
func (p Processes) Ask(ctx context.Context, d Daemon, commands ...string) (string, error) {
	klog.FromContext(ctx).V(6).Info("Asking the MPS control daemon", "gpu", d.GPU, "commands", commands)
	command := exec.CommandContext(ctx, p.Self[0], append(p.Self[1:], d.GPU, "ask")...)
	command.WaitDelay = time.Second
	var out, complaints limited
	command.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	command.Stdout, command.Stderr = &out, &complaints
	instructions, err := startSandboxed(command)
	if err != nil {
		return "", fmt.Errorf("start %s: %w", controlProgram, err)
	}
	sent := json.NewEncoder(instructions).Encode(p.sandbox(d))
	sent = errors.Join(sent, instructions.Close())
	if err := errors.Join(command.Wait(), sent); err != nil {
		return out.String(), fmt.Errorf("ask the MPS control daemon by %q: %w: %.300s", commands[0], err,
			strings.TrimSpace(out.String()+" "+complaints.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// limited keeps only the beginning of its input. The buffer is not embedded, as its ReadFrom would bypass Write.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(data []byte) (int, error) {
	if room := maxAnswer - l.kept.Len(); room > 0 {
		l.kept.Write(data[:min(room, len(data))])
	}
	return len(data), nil
}

func (l *limited) String() string { return l.kept.String() }

// Serves looks for other MPS programs that use the daemon's pipes.
func (p Processes) Serves(_ context.Context, d Daemon, daemon ProcessID) (bool, error) {
	found, err := findProcesses(d.paths.pipe)
	if err != nil {
		return false, fmt.Errorf("find processes of MPS: %w", err)
	}
	return slices.ContainsFunc(found, func(id ProcessID) bool { return id != daemon }), nil
}

// Sweep kills MPS programs that use the daemon's pipes, and removes the daemon's cgroup.
func (p Processes) Sweep(ctx context.Context, d Daemon) error {
	left, err := findProcesses(d.paths.pipe)
	if err != nil {
		return fmt.Errorf("find processes of MPS: %w", err)
	}
	for _, id := range left {
		if err := killAndWait(ctx, id); err != nil {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Ended a process of MPS", "gpu", d.GPU, "pid", id.PID)
	}
	return p.removeCgroup(ctx, d)
}

// killTimeout bounds the wait for a killed process: only one hanging in the kernel takes longer.
const killTimeout = 5 * time.Second

func killAndWait(ctx context.Context, id ProcessID) error {
	w, err := watchProcess(id, nil)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.Forget()
	if err := w.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	select {
	case <-w.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end after SIGKILL; check whether it hangs in the driver (dmesg)", id.PID)
	}
}
