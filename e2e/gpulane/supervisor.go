// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

const (
	// supervisorStart bounds the start of the supervisor, which opens a socket and no more.
	supervisorStart = 20 * time.Second
	// supervisorStop bounds its end. It leaves daemons running, so there is nothing to wait for.
	supervisorStop = 20 * time.Second
)

// supervisor is a run of cleave-node mps-supervisor in a directory of this run's own.
type supervisor struct {
	dir     string
	program *process.Program
	client  *mps.Client
}

// startSupervisor starts it and waits until it answers.
func (l *lane) startSupervisor(ctx context.Context) (*supervisor, error) {
	s := &supervisor{dir: l.path("mps")}
	command := l.cleaveNode(append([]string{"mps-supervisor", "--dir", s.dir, "--compute-mode=keep", "--v=6"}, l.hardware()...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the lane's: it has things to release first
	var err error
	if s.program, err = process.Start(command, l.out("mps.log")); err != nil {
		return nil, err
	}
	if s.client, err = mps.Dial(filepath.Join(s.dir, mps.SocketName)); err == nil {
		ctx, cancel := context.WithTimeout(ctx, supervisorStart)
		defer cancel()
		err = s.program.WaitReady(ctx, s.client.Available)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), s.stop())
	}
	return s, nil
}

// stop asks it to end, and makes it.
func (s *supervisor) stop() error {
	if s.client != nil {
		_ = s.client.Close() // it fails only when it is closed already
	}
	kill := time.AfterFunc(supervisorStop, func() { _ = syscall.Kill(s.program.PID(), syscall.SIGKILL) })
	defer kill.Stop()
	if err := errors.Join(s.program.End(syscall.SIGTERM), s.program.Err()); err != nil {
		return fmt.Errorf("stop the supervisor: %w", err)
	}
	return nil
}

// leftovers lists what there is of MPS below a directory: processes, mounts, directories of daemons.
func leftovers(dir string) ([]string, error) {
	var list []string
	pids, err := processesOf(dir)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		list = append(list, fmt.Sprintf("process %d", pid))
	}
	mounts, err := mountsUnder(dir)
	if err != nil {
		return nil, err
	}
	list = append(list, mounts...)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for what MPS left: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "gpu-") {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list, nil
}

// programPrefix is how the kernel names the programs of MPS, daemon and server.
const programPrefix = "nvidia-cuda-mps"

// processesOf lists the programs of MPS whose environment names a text, such as a directory or a GPU.
func processesOf(text string) ([]int, error) {
	list, err := process.List()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range list {
		if strings.HasPrefix(p.Name, programPrefix) && strings.Contains(p.Environment, text) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}

// mountsUnder lists what is mounted in a directory.
func mountsUnder(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			found = append(found, fields[4])
		}
	}
	return found, nil
}

// sweep takes away what the supervisor should have: the machine is left clean whatever failed.
func sweep(dir string) error {
	pids, err := processesOf(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("kill process %d of MPS: %w", pid, err))
		}
	}
	mounts, err := mountsUnder(dir)
	errs = append(errs, err)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m, err))
		}
	}
	return errors.Join(errs...)
}
