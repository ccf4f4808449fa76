// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

const (
	// unit is what amounts of memory are made of, in bytes; half of it on small boards.
	unit = 1 << 30
	// needed is how many units must be free: the clients hold at most that much at one time, contexts included.
	needed = 14
	// sharedMemory of the daemon and its clients, in bytes.
	sharedMemory = 1 << 30
	// mpsCapability is the first compute capability whose clients can be limited: Volta's.
	mpsCapability = 7.0
	// prohibited is NVML_COMPUTEMODE_PROHIBITED.
	prohibited = 2
	// callTimeout bounds a request to the supervisor; it gives up itself before.
	callTimeout = time.Minute
)

// baseline is what a CUDA program sees without MPS.
type baseline struct {
	multiprocessors int
	// ms is for how long the kernel runs on all of them.
	ms float64
}

// sharing is a GPU that is shared by MPS.
type sharing struct {
	*lane
	supervisor *supervisor
	board      *board
	// unit of memory amounts, in bytes.
	unit int64
}

// mps shares a GPU as Cleave does and looks what its limits are worth.
func (l *lane) mps(ctx context.Context) {
	var chosen *board
	if !l.check("mps", "machine", func() (detail string, err error) {
		chosen, err = l.choose()
		if err == nil {
			err = l.permitted(ctx)
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("GPU %d at %s; programs can have namespaces of their own", chosen.index, chosen.pci), nil
	}) {
		return
	}
	s := &sharing{lane: l, board: chosen, unit: unit}
	if chosen.free < needed*unit {
		s.unit = unit / 2
	}
	l.cudaWorks = l.check("mps", "cuda", func() (string, error) { return s.bare(ctx) })
	defer func() {
		l.check("mps", "nothing left", func() (string, error) { return s.nothingLeft(context.WithoutCancel(ctx)) })
		if err := sweep(l.path("mps")); err != nil {
			fmt.Fprintf(l.commands, "clean up after MPS: %v\n", err)
		}
	}()
	if !l.check("mps", "supervisor", func() (detail string, err error) {
		s.supervisor, err = l.startSupervisor(ctx)
		return "cleave-node mps-supervisor --compute-mode=keep answers", err
	}) {
		return
	}
	s.amounts(ctx)
	s.defaults(ctx)
	l.check("mps", "supervisor stops", func() (string, error) { return "on SIGTERM", s.supervisor.stop() })
}

// choose finds a GPU that nobody uses.
func (l *lane) choose() (*board, error) {
	switch {
	case !l.machine.Root:
		return nil, skipf("not root: the supervisor mounts and its clients have namespaces")
	case l.machine.MPSControl == "" || l.machine.MPSServer == "":
		return nil, skipf("no nvidia-cuda-mps-control and -server under %s", l.opts.DriverRoot)
	}
	var reasons []string
	for i := range l.boards {
		b := &l.boards[i]
		capability, err := strconv.ParseFloat(b.capability, 64)
		others, listed := processesOf(b.uuid)
		switch {
		case err != nil || capability < mpsCapability:
			reasons = append(reasons, fmt.Sprintf("GPU %d has compute capability %q", b.index, b.capability))
		case b.mig:
			reasons = append(reasons, fmt.Sprintf("GPU %d is in MIG mode", b.index))
		case b.computeMode == prohibited:
			reasons = append(reasons, fmt.Sprintf("GPU %d is closed to compute by its compute mode", b.index))
		case len(b.processes) > 0:
			reasons = append(reasons, fmt.Sprintf("GPU %d is used by process %d", b.index, b.processes[0].PID))
		case listed != nil || len(others) > 0:
			reasons = append(reasons, fmt.Sprintf("GPU %d has an MPS server already", b.index))
		case b.free < needed*unit/2:
			reasons = append(reasons, fmt.Sprintf("GPU %d has %d MiB free", b.index, b.free>>20))
		default:
			return b, nil
		}
	}
	return nil, skipf("no GPU to share: %s", strings.Join(reasons, "; "))
}

// permitted tries what the supervisor and its clients need of the kernel, in a process that is gone after it.
func (l *lane) permitted(ctx context.Context) error {
	if err := os.Mkdir(l.path("shm"), 0o755); err != nil {
		return fmt.Errorf("create a directory to mount: %w", err)
	}
	c := exec.Command(l.opts.Self[0], append(slices.Clone(l.opts.Self[1:]), //nolint:noctx // runWithin bounds it
		fmt.Sprintf(`{"mounts":[{"from":%q,"to":"/dev/shm"}]}`, l.path("shm")))...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if _, err := l.commands.run(ctx, c); err != nil {
		return skipf("this machine does not let programs have mounts of their own: %v", err)
	}
	return nil
}

// bare runs a CUDA program without MPS.
func (s *sharing) bare(ctx context.Context) (string, error) {
	p, err := s.start(ctx, s.only(client{name: "bare", env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + s.path("no-mps")}}))
	if err != nil {
		if s.machine.CUDA != "" && strings.Contains(err.Error(), "cannot be loaded") {
			return "", fmt.Errorf("%w; it is %s: ldconfig -X %s makes it known", err, s.machine.CUDA, filepath.Dir(s.machine.CUDA))
		}
		return "", err
	}
	defer p.end()
	s.cuda.multiprocessors = p.ready.Multiprocessors
	if s.cuda.ms, err = p.fastest(ctx, rounds); err != nil {
		return "", err
	}
	return fmt.Sprintf("CUDA %d.%d, %d multiprocessors, the kernel takes %.1f ms on all of them",
		p.ready.Version/1000, p.ready.Version%1000/10,
		s.cuda.multiprocessors, s.cuda.ms), nil
}

// only shows a client the GPU of the run, where there are others. On a machine with one GPU nothing is set, as in a
// container.
func (s *sharing) only(c client) client {
	c.env = append(slices.Clone(c.env), "CUDA_CACHE_DISABLE=1")
	if len(s.boards) > 1 {
		c.env = append(c.env, "CUDA_VISIBLE_DEVICES="+s.board.uuid)
	}
	return c
}

// ensure registers a claim with the supervisor.
func (s *sharing) ensure(ctx context.Context, uid types.UID, percentage int, memory int64) (mps.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.supervisor.client.Ensure(ctx, mps.Request{
		Owner: "lane.cleave.dev",
		Claim: uid, Device: s.board.pci.DeviceName(), UUID: s.board.uuid, PCI: s.board.pci,
		Settings: mps.Settings{SharedMemory: sharedMemory, ActiveThreadPercentage: percentage, PinnedMemory: memory},
	})
}

// release ends the use by claims, also when the run is cut short, and looks for what is left. The daemon's own logs go
// with it, so they are kept.
func (s *sharing) release(ctx context.Context, claims ...types.UID) (string, error) {
	logs, _ := filepath.Glob(filepath.Join(s.supervisor.dir, "gpu-*", "log", "*")) // the pattern is good
	for _, log := range logs {
		s.commands.file(log)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	began := time.Now()
	for _, uid := range claims {
		if err := s.supervisor.client.Release(ctx, s.board.pci.DeviceName(), uid); err != nil {
			return "", err
		}
	}
	took := time.Since(began)
	status, err := s.supervisor.client.Status(ctx)
	if err != nil {
		return "", err
	}
	list, err := leftovers(s.supervisor.dir)
	if err != nil {
		return "", err
	}
	for _, g := range status.GPUs {
		list = append(list, fmt.Sprintf("%s is %s", g.Device, g.State))
	}
	if len(list) > 0 {
		return "", fmt.Errorf("after the last share something of MPS is left: %s", strings.Join(list, ", "))
	}
	return fmt.Sprintf("daemon, server, directories and mounts are gone after %d ms", took.Milliseconds()), nil
}

// control asks the daemon as an admin would; the transcript has the words, of which NVIDIA documents few.
func (s *sharing) control(ctx context.Context, endpoint mps.Endpoint, commands ...string) string {
	c := exec.Command(s.machine.MPSControl) //nolint:noctx // quietly bounds it
	c.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	// Clients see a part of the daemon's pipes, in a directory in it.
	c.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+filepath.Dir(endpoint.PipeDir), "CUDA_MPS_LOG_DIRECTORY="+endpoint.LogDir)
	output, err := s.commands.quietly(ctx, c)
	fmt.Fprintf(s.commands, "$ nvidia-cuda-mps-control <<< %q\n%s[%s]\n\n", commands, output, ending(err))
	return strings.TrimSpace(string(output))
}

// nothingLeft looks at the machine, and at the GPU, whose processes end a moment after they are gone.
func (s *sharing) nothingLeft(ctx context.Context) (string, error) {
	list, err := leftovers(s.path("mps"))
	if err != nil {
		return "", err
	}
	if len(list) > 0 {
		return "", fmt.Errorf("it is left: %s", strings.Join(list, ", "))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		facts, err := s.askNVML(ctx, "idle")
		if err != nil {
			return "", err
		}
		left, _ := value[[]gpuProcess](facts, s.board.index, "nvmlDeviceGetComputeRunningProcesses_v3", "")
		if len(left) == 0 {
			return "no process, mount or directory of MPS, and no process on the GPU", nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("process %d is left on the GPU", left[0].PID)
		case <-tick.C:
		}
	}
}
