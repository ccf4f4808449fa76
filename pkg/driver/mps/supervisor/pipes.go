// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Contents of a daemon's pipe directory, by NVIDIA's listings with drivers 535 to 580 under an ordinary umask:
//
//	srw-rw-rw-  control              sockets of clients; also that of commands that any user may give
//	-rw-rw-rw-  control_lock         locked by the daemon for as long as it lives
//	srwxr-xr-x  control_privileged   commands of root: defaults of clients, quit
//	prwxrwxrwx  log                  lines that servers and clients want in the daemon's logs
//	-rw-rw-rw-  nvidia-cuda-mps-control.pid
//
// A CUDA program connects to control and opens no other (traces in open-mpi/ompi#11783 and NVIDIA/cuda-checkpoint#10); it may write
// to log. control_privileged is protected only by its mode, which does not stop root in a container, and which an empty umask would
// void. So containers see neither it nor the directory, but clients, which contains links to the client pipes and keeps its inode
// from one daemon to the next. The kernel finds a socket by its inode (unix(7) sockets are looked up by path, then inode), so that
// a hard link works as well as the original name.
const (
	controlSocket    = "control"
	logPipe          = "log"
	privilegedSocket = "control_privileged"
)

const (
	// pipeSize bounds the file system of a GPU's pipes, in bytes: sockets take none, lock and PID file a page each.
	pipeSize = 1 << 20
	// pipeMode admits clients of any user, but lets only root change the directory.
	pipeMode = 0o755
	// logSize bounds that of its logs, in bytes: clients control the amount of logging.
	logSize = 16 << 20
	// logMode keeps logs root's.
	logMode = 0o700
	// maxLog is the size in bytes above which the next daemon starts a new log.
	maxLog = logSize / 4
)

// Clear empties the pipe directory. It keeps the directory that containers have mounted, and deletes only its contents. Large logs
// are truncated.
func (Disk) Clear(p paths) error {
	if err := os.Mkdir(p.clients, pipeMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(p.clients, pipeMode); err != nil {
		return err
	}
	if err := errors.Join(emptyDir(p.clients, ""), emptyDir(p.pipe, filepath.Base(p.clients))); err != nil {
		return err
	}
	logs, err := os.ReadDir(p.log)
	if err != nil {
		return err
	}
	for _, e := range logs {
		if info, err := e.Info(); err == nil && info.Size() > maxLog {
			if err := os.Remove(filepath.Join(p.log, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// emptyDir deletes the contents of a directory, except for one name. The directory stays: containers have mounted it.
func emptyDir(dir, but string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == but {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// ShowClients links the client pipes into the clients' directory, accessible to any user, and makes sure that the privileged socket
// is root's. It is idempotent.
func (Disk) ShowClients(p paths) error {
	if err := os.Chmod(filepath.Join(p.pipe, privilegedSocket), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // MPS of before it had none is fine
	}
	if err := os.Mkdir(p.clients, pipeMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Chmod(p.clients, pipeMode); err != nil {
		return err
	}
	for _, name := range []string{controlSocket, logPipe} {
		from, to := filepath.Join(p.pipe, name), filepath.Join(p.clients, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) && name == logPipe {
			continue
		}
		if err != nil {
			return err
		}
		if there, err := os.Lstat(to); err == nil && os.SameFile(info, there) {
			continue
		}
		err = errors.Join(os.Chmod(from, 0o666), os.RemoveAll(to), os.Link(from, to)) //nolint:gosec // clients are of any user
		if err != nil {
			return err
		}
	}
	return nil
}
