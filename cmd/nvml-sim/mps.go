// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

const mpsUsage = `nvidia-cuda-mps-control of a simulated node. It knows:
  nvidia-cuda-mps-control -d [-multiuser-server]    start the daemon in the background
  nvidia-cuda-mps-control -f [-multiuser-server]    start the daemon in the foreground
  nvidia-cuda-mps-control                           send the lines of stdin to the daemon
  nvidia-cuda-mps-control cuda-client [FLAG...]     act as a CUDA program (see cuda-client --help)
CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_LOG_DIRECTORY and CUDA_VISIBLE_DEVICES say where and for which GPUs.`

// Names of the programs of MPS, and how a daemon's process is asked to report that it has started.
const (
	mpsControlName = "nvidia-cuda-mps-control"
	mpsStartedEnv  = "NVML_SIM_MPS_STARTED" // set: file 3 wants to hear of it
)

// asMPS acts as one of the MPS programs if this program has its name, which ok reports.
func asMPS(name string, args []string) (code int, ok bool) {
	if name != mpsControlName && name != mps.ServerName {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) > 0 && args[0] == cudaClientName {
		c := newCUDAClient()
		c.SetArgs(args[1:])
		return exitCode(c.ExecuteContext(ctx)), true
	}
	if name == mps.ServerName {
		return exitCode(serveMPS(ctx)), true
	}
	err := controlMPS(ctx, args)
	switch {
	case errors.Is(err, mps.ErrRunning): // in NVIDIA's words alone, and where NVIDIA's says them
		fmt.Fprintln(stdout, mps.ErrRunning)
		return exitFailed, true
	case errors.Is(err, mps.ErrNoDaemon):
		fmt.Fprintln(os.Stderr, mps.ErrNoDaemon)
		return exitFailed, true
	default:
		return exitCode(err), true
	}
}

// serveMPS is the process of a server.
func serveMPS(ctx context.Context) error {
	socket := os.NewFile(3, "daemon")
	var st syscall.Stat_t
	if syscall.Fstat(3, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return usagef("%s is started by %s", mps.ServerName, mpsControlName)
	}
	syscall.CloseOnExec(3)
	return mps.Serve(ctx, socket, func() (*sim.Node, error) { return openMPSNode(ctx, func() {}) })
}

// openMPSNode opens the node of the program; before is called before a fault makes something slow.
func openMPSNode(ctx context.Context, before func()) (*sim.Node, error) {
	n, _, err := openHere(smiRoot(), sim.WithSleep(func(d time.Duration) {
		before()
		wait, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		<-wait.Done()
	}))
	return n, err
}

// openHere opens a node, or a container's view of one.
func openHere(root string, opts ...sim.Option) (*sim.Node, []sim.VisiblePartition, error) {
	n, err := sim.Open(root, opts...)
	if errors.Is(err, fs.ErrNotExist) { // in a container
		return sim.OpenVisible(root, opts...)
	}
	return n, nil, err
}

// controlMPS is nvidia-cuda-mps-control.
func controlMPS(ctx context.Context, args []string) error {
	var background, foreground, multiUser bool
	for _, a := range args {
		switch a {
		case "-d", "--daemon":
			background = true
		case "-f", "--foreground":
			foreground = true
		case "-multiuser-server", "--multiuser-server", "-M":
			multiUser = true
		case "-h", "--help":
			fmt.Fprintln(stdout, mpsUsage)
			return nil
		default:
			return usagef("unknown argument %q\n%s", a, mpsUsage)
		}
	}
	switch {
	case background && foreground:
		return usagef("-d and -f: one at a time")
	case background:
		return startMPSDaemon(multiUser)
	case foreground:
		return runMPSDaemon(ctx, multiUser)
	case multiUser:
		return usagef("-multiuser-server needs -d or -f")
	default:
		return mps.Control(ctx, mps.PipeDirectory(), os.Stdin, stdout)
	}
}

// mpsProgram is the path of a program that lies next to this one.
func mpsProgram(name string) string {
	self, err := os.Executable()
	if err != nil { // no /proc, as after chroot
		return filepath.Join(smiRoot(), "usr/bin", name)
	}
	sibling := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(sibling); err != nil {
		return self
	}
	return sibling
}

// mpsCommand makes the command of a process that acts as a program of MPS.
func mpsCommand(name string, args ...string) *exec.Cmd {
	c := exec.Command(mpsProgram(name), args...)
	c.Args[0] = name
	return c
}

// startMPSDaemon starts the daemon in a process of its own, and returns when it has its files or has failed.
func startMPSDaemon(multiUser bool) (err error) {
	started, say, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	defer started.Close()
	args := []string{"-f"}
	if multiUser {
		args = append(args, "-multiuser-server")
	}
	c := mpsCommand(mpsControlName, args...)
	c.Env = append(os.Environ(), mpsStartedEnv+"=1")
	c.ExtraFiles = []*os.File{say}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = c.Start()
	say.Close()
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	words, err := io.ReadAll(started)
	switch text := string(words); {
	case err != nil:
		return fmt.Errorf("start daemon: %w", err)
	case text == startedWell:
		return nil
	case text == mps.ErrRunning.Error():
		return mps.ErrRunning
	case text == "":
		return errors.New("start daemon: it ended at once")
	default:
		return errors.New(text)
	}
}

// startedWell is the message of a daemon's process when it has started.
const startedWell = "started"

// sayStarted returns how to say, once, whether the daemon has started.
func sayStarted() func(string) {
	if os.Getenv(mpsStartedEnv) == "" {
		return func(string) {}
	}
	_ = os.Unsetenv(mpsStartedEnv) // it cannot fail on that name
	to := os.NewFile(3, "started")
	syscall.CloseOnExec(3)
	said := false
	return func(text string) {
		if !said {
			said = true
			_, _ = io.WriteString(to, text) // the parent may be gone
			to.Close()
		}
	}
}

// runMPSDaemon is the daemon.
func runMPSDaemon(ctx context.Context, multiUser bool) error {
	say := sayStarted()
	well := func() { say(startedWell) }
	fail := func(ctx context.Context, call string) error {
		n, err := openMPSNode(ctx, well)
		if err != nil {
			return nil //nolint:nilerr // without a node there are no faults; servers will say that there is none
		}
		if err := n.Init(); err != nil {
			return nil //nolint:nilerr // likewise
		}
		// The daemon asks and does not keep the driver open: its servers do.
		return errors.Join(mps.ApplyFaults(n, call), n.Shutdown())
	}
	err := mps.Run(ctx, mps.Options{
		PipeDir:   mps.PipeDirectory(),
		LogDir:    mps.LogDirectory(),
		MultiUser: multiUser,
		Threads:   os.Getenv(mps.EnvThreads),
		Limits:    os.Getenv(mps.EnvMemory),
		Server:    func() *exec.Cmd { return mpsCommand(mps.ServerName) },
		Start: func(ctx context.Context) error {
			if err := fail(ctx, sim.CallMPSControlStart); err != nil {
				return err
			}
			well()
			return nil
		},
		Command: func(ctx context.Context) error { return fail(ctx, sim.CallMPSControlCommand) },
	})
	if err != nil {
		say(err.Error())
	}
	return err
}

func newMPS() *cobra.Command {
	pipe, server := "", 0
	fault := &cobra.Command{
		Use:   "fault [--pipe-directory DIR] [--server PID]",
		Short: "Make the GPU of an MPS server run into a fatal fault, which hits all its clients",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			line := "simulate_fault"
			if server > 0 {
				line += fmt.Sprintf(" %d", server)
			}
			var reply strings.Builder
			if err := mps.Control(c.Context(), pipe, strings.NewReader(line), &reply); err != nil {
				return err
			}
			if reply.Len() > 0 {
				return errors.New(strings.TrimSpace(reply.String()))
			}
			return nil
		},
	}
	fault.Flags().StringVar(&pipe, "pipe-directory", mps.PipeDirectory(), "`directory` where the daemon listens")
	fault.Flags().IntVar(&server, "server", 0, "`PID` of the server (default: all)")
	return group("mps", "Inject faults for MPS servers", fault)
}
