// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// Files of a pipe directory, by listings of NVIDIA's daemon under an ordinary umask (drivers 535 to 580):
//
//	srw-rw-rw-  control
//	-rw-rw-rw-  control_lock
//	srwxr-xr-x  control_privileged
//	prwxrwxrwx  log
//	-rw-rw-rw-  nvidia-cuda-mps-control.pid
//
// The daemon sets all modes but that of control_privileged, which depends on the umask: with an empty one, every user can quit the
// daemon.
const (
	socketName     = "control"
	lockName       = "control_lock"
	privilegedName = "control_privileged"
	logName        = "log"
	pidName        = "nvidia-cuda-mps-control.pid"
)

func socketPath(pipe string) string { return filepath.Join(pipe, socketName) }

// listen makes a socket of the pipe directory; mode 0 leaves its mode to the umask.
func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("bind control socket: %w", err)
	}
	if mode == 0 {
		return listener, nil
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("bind control socket: %w", err), listener.Close())
	}
	return listener, nil
}

// listenAll makes both sockets.
func listenAll(pipe string) (control, privileged *net.UnixListener, err error) {
	if control, err = listen(socketPath(pipe), 0o666); err != nil {
		return nil, nil, err
	}
	if privileged, err = listen(filepath.Join(pipe, privilegedName), 0); err != nil {
		return nil, nil, errors.Join(err, control.Close())
	}
	return control, privileged, nil
}

// makeShared makes the other files that all users may write.
func makeShared(pipe string) error {
	lock, log := filepath.Join(pipe, lockName), filepath.Join(pipe, logName)
	return errors.Join(os.WriteFile(lock, nil, 0o600), os.Chmod(lock, 0o666), //nolint:gosec // as NVIDIA's
		syscall.Mkfifo(log, 0o600), os.Chmod(log, 0o777), //nolint:gosec // as NVIDIA's
		os.Chmod(filepath.Join(pipe, pidName), 0o666)) //nolint:gosec // as NVIDIA's
}

// removePipes removes a daemon's files except its PID file, which is removed last.
func removePipes(pipe string) error {
	var errs []error
	for _, name := range []string{socketName, privilegedName, logName, lockName} {
		errs = append(errs, removeStale(filepath.Join(pipe, name)))
	}
	return errors.Join(errs...)
}

// maxLogLine bounds a read of the log pipe: writes up to this size are atomic (pipe(7), PIPE_BUF).
const maxLogLine = 4096

// readLog copies what servers and clients write to the log pipe into a log, until the returned function is called. As with NVIDIA's
// daemon, the size is unbounded.
func readLog(pipe string, to *logFile) (stop func(), err error) {
	// Also for writing, so that it has no end when the last writer leaves.
	from, err := os.OpenFile(filepath.Join(pipe, logName), os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the log pipe: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, maxLogLine)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			_, _ = to.w.Write(buffer[:n]) // a log that cannot be written stops nothing
		}
	}()
	return func() {
		_ = from.Close() // ends the reading
		<-done
	}, nil
}

// sayToLog writes a line to the log pipe as libcuda does, if there is a pipe and a daemon that reads it.
func sayToLog(pipe, line string) {
	f, err := os.OpenFile(filepath.Join(pipe, logName), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintln(f, line)
}
