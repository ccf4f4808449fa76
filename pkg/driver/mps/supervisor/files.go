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
	// DriverRoots are the other roots below which daemons' directories may have been mounted.
	DriverRoots []string
}

// MakeDirs makes the directories. Who was given a mount of one passes through; logs are root's.
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

// checkDir refuses what lies in place of a directory, such as a link: what is created, emptied or mounted there would be so
// elsewhere on the host.
func checkDir(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory but %s: remove it", path, info.Mode())
	}
	return err
}

// RemoveDirs deletes the directories, and the empty ones that the daemon had them mounted on below the driver's root.
func (d Disk) RemoveDirs(p paths) error {
	for _, dir := range p.mounts() {
		if isMounted(dir) {
			return fmt.Errorf("%s is still mounted", dir) // what containers have in it is not ours to delete
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
			// One that is not empty is used by others, or is the very same directory.
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
	// SELinux labels what is mounted as containers' own files.
	SELinux bool
}

// HasSELinux reports whether the kernel enforces SELinux policies or could, from /proc/filesystems: the kernel registers selinuxfs only
// then (security/selinux/selinuxfs.c, init_sel_fs; libselinux, is_selinux_enabled). An unreadable file counts as none.
func HasSELinux(procfs fs.FS) bool {
	data, err := fs.ReadFile(procfs, "filesystems")
	return err == nil && slices.Contains(strings.Fields(string(data)), "selinuxfs")
}

// containerLabel lets confined containers use files of a tmpfs, whichever categories they have. CDI mounts are not relabelled, so that
// a client could not reach its server, and CUDA goes on without MPS where it finds none: past every limit, on a GPU that is then in use
// for all others. NVIDIA's device plugin gives its pipes the same label (cmd/mps-control-daemon/mps, setSELinuxContext).
const containerLabel = ",context=system_u:object_r:container_file_t:s0"

// mountSource marks our mounts in mountinfo.
const mountSource = "cleave-mps"

// Mount puts a tmpfs on a directory, unless there is one: containers may have that one mounted. None of its files is to
// run or to be a device. The directory can only be reached by who was given a mount of it.
func (m Tmpfs) Mount(ctx context.Context, t tmpfs) error {
	if isMounted(t.dir) {
		return nil
	}
	return m.try(ctx, t.options(), func(options string) error {
		return unix.Mount(mountSource, t.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options)
	})
}

// try mounts with the label where there is SELinux, and without it where its policy does not know the label (EINVAL), or does not let
// this process give it: Bottlerocket's refuses that, and lets containers use what is not labelled (bottlerocket-core-kit,
// packages/selinux-policy; k8s-device-plugin#1105).
func (m Tmpfs) try(ctx context.Context, options string, mount func(options string) error) error {
	if m.SELinux {
		err := mount(options + containerLabel)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return err
		}
		klog.FromContext(ctx).Info("The directories of an MPS server have no SELinux label for containers: where these may not use other files, "+
			"their programs go on without MPS", "label", containerLabel, "reason", err.Error())
	}
	return mount(options)
}

// options are those of the file system's mount, tmpfs(5).
func (t tmpfs) options() string { return fmt.Sprintf("size=%d,mode=%o", t.size, t.mode) }

// Unmount takes away every mount on a directory.
func (Tmpfs) Unmount(dir string) error {
	for {
		err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			// Somebody looks at it. It goes when they leave, and cannot be found any more until then.
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
