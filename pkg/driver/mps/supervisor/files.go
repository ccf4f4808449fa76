// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Disk is the Files of the operating system.
type Disk struct {
	// DriverRoots are other roots below which daemons' directories may be mounted.
	DriverRoots []string
}

// MakeDirs creates the directories. Those mounted into containers can be entered by any user; logs are root's.
func (Disk) MakeDirs(p paths) error {
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{{p.dir, 0o711}, {p.pipe, pipeMode}, {p.log, logMode}, {p.shm, 0o755}} {
		err := os.Mkdir(d.path, d.mode)
		if errors.Is(err, fs.ErrExist) {
			if err := checkDir(d.path); err != nil {
				return err
			}
			continue
		}
		if err == nil {
			err = os.Chmod(d.path, d.mode) // whatever the umask
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkDir fails if a path is not a directory, but a link for example: files would be created, deleted or mounted elsewhere on the
// host.
func checkDir(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory but %s: remove it", path, info.Mode())
	}
	return err
}

// RemoveDirs deletes the directories, and their empty mount points below the driver's root.
func (d Disk) RemoveDirs(p paths) error {
	for _, dir := range p.mounts() {
		if isMounted(dir) {
			return fmt.Errorf("%s is still mounted", dir) // it may contain files of containers
		}
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return err
	}
	for _, root := range d.DriverRoots {
		if root == "/" {
			continue
		}
		for _, dir := range []string{p.pipe, p.log, p.dir, filepath.Dir(p.dir)} {
			// A non-empty one is used by others, or is the same directory.
			err := os.Remove(filepath.Join(root, dir))
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EBUSY) {
				return err
			}
		}
	}
	return nil
}

// Tmpfs is the Mounts of the operating system.
type Tmpfs struct {
	// SELinux labels mounts as container files.
	SELinux bool
}

// HasSELinux reports whether the kernel enforces SELinux policies or could, from /proc/filesystems: the kernel registers selinuxfs only
// then (security/selinux/selinuxfs.c, init_sel_fs; libselinux, is_selinux_enabled). An unreadable file counts as none.
func HasSELinux(procfs fs.FS) bool {
	data, err := fs.ReadFile(procfs, "filesystems")
	return err == nil && slices.Contains(strings.Fields(string(data)), "selinuxfs")
}

// containerLabel lets confined containers of any category use files of a tmpfs. CDI mounts are not relabelled, so without it a
// client could not reach its server, and CUDA would run without MPS: without limits, and blocking the GPU for all others. NVIDIA's
// device plugin gives its pipes the same label (cmd/mps-control-daemon/mps, setSELinuxContext).
const containerLabel = ",context=system_u:object_r:container_file_t:s0"

// mountSource marks our mounts in mountinfo.
const mountSource = "cleave-mps"

// Mount mounts a tmpfs on a directory, unless one exists, which containers may use. It allows no executables or device files. Only
// containers with a mount of the directory can reach it.
func (m Tmpfs) Mount(ctx context.Context, t tmpfs) error {
	if isMounted(t.dir) {
		return nil
	}
	return m.try(ctx, t.options(), func(options string) error {
		return unix.Mount(mountSource, t.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	})
}

// try mounts with the label under SELinux, and without it if the policy does not know the label (EINVAL) or forbids setting it:
// Bottlerocket's does, but lets containers use unlabelled files (bottlerocket-core-kit, packages/selinux-policy;
// k8s-device-plugin#1105).
func (m Tmpfs) try(ctx context.Context, options string, mount func(options string) error) error {
	if m.SELinux {
		err := mount(options + containerLabel)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return err
		}
		klog.FromContext(ctx).Info("The directories of an MPS server have no SELinux label for containers: if the policy denies these, "+
			"their programs run without MPS", "label", containerLabel, "reason", err.Error())
	}
	return mount(options)
}

// A tmpfs allows half as many files as the host has pages unless told otherwise (Documentation/filesystems/tmpfs.rst), and an empty file
// takes about a kilobyte of the kernel's memory that size does not count.
const (
	bytesPerFile = 16 << 10
	minFiles     = 1 << 10
	maxFiles     = 64 << 10
)

// options are those of the file system's mount, tmpfs(5).
func (t tmpfs) options() string {
	return fmt.Sprintf("size=%d,nr_inodes=%d,mode=%o", t.size, min(max(t.size/bytesPerFile, minFiles), maxFiles), t.mode)
}

// Unmount removes all mounts on a directory.
func (Tmpfs) Unmount(dir string) error {
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// It is in use. Detached, it can no longer be found, and ends with its last user.
			err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
		}
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist): // not, or no longer, mounted
			return nil
		case err != nil:
			return err
		}
	}
}

// isMounted reports whether something is mounted on a directory: then it is of another device than its parent.
func isMounted(dir string) bool {
	var here, above unix.Stat_t
	if unix.Lstat(dir, &here) != nil || unix.Lstat(filepath.Dir(dir), &above) != nil {
		return false
	}
	return here.Dev != above.Dev
}
