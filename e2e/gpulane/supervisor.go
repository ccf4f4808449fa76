// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleave-dra/cleave/pkg/mps"
)

const (
	// supervisorStart bounds the start of the supervisor, which opens a socket and no more.
	supervisorStart = 20 * time.Second
	// supervisorStop bounds its end. It leaves daemons running, so there is nothing to wait for.
	supervisorStop = 20 * time.Second
)

// supervisor is a run of cleave mps-supervisor in a folder of this run's own.
type supervisor struct {
	dir     string
	command *exec.Cmd
	ended   chan error
	client  *mps.Client
}

// startSupervisor starts it and waits until it answers.
func (l *lane) startSupervisor(ctx context.Context) (*supervisor, error) {
	s := &supervisor{dir: l.path("mps"), ended: make(chan error, 1)}
	args := append([]string{"mps-supervisor", "--dir", s.dir, "--compute-mode=keep", "--v=6"}, l.hardware()...)
	s.command = l.cleave(args...)
	log, err := os.Create(l.out("mps.log"))
	if err != nil {
		return nil, fmt.Errorf("make the supervisor's log: %w", err)
	}
	defer log.Close()
	s.command.Stdout, s.command.Stderr = log, log
	s.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the lane's: it has things to release first
	if err := s.command.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	go func() { s.ended <- s.command.Wait() }() // ends with the process
	if s.client, err = mps.Dial(filepath.Join(s.dir, mps.SocketName)); err == nil {
		err = s.waitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w; its log is mps.log", err), s.stop())
	}
	return s, nil
}

func (s *supervisor) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, supervisorStart)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.client.Available(ctx)
		if err == nil {
			return nil
		}
		select {
		case end := <-s.ended:
			s.ended <- end // for stop
			return fmt.Errorf("it ended: %s", ending(end))
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// stop asks it to end, and makes it.
func (s *supervisor) stop() error {
	if s.client != nil {
		_ = s.client.Close() // it fails only when it is closed already
	}
	_ = s.command.Process.Signal(syscall.SIGTERM) // it may have ended
	kill := time.AfterFunc(supervisorStop, func() { _ = s.command.Process.Kill() })
	defer kill.Stop()
	if err := <-s.ended; err != nil {
		return fmt.Errorf("stop the supervisor: %w", err)
	}
	return nil
}

// leftovers lists what there is of MPS below a folder: processes, mounts, folders of daemons.
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

// processesOf lists the programs of MPS whose environment names a text, such as a folder or a GPU.
func processesOf(text string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err1 := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		environment, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err1 == nil && err2 == nil && strings.HasPrefix(string(name), programPrefix) && strings.Contains(string(environment), text) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// mountsUnder lists what is mounted in a folder.
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
