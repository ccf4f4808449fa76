// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
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
type Tmpfs struct{}

// mountSource marks our mounts in mountinfo.
const mountSource = "cleave-mps"

// Mount puts a tmpfs on a directory, unless there is one: containers may have that one mounted. None of its files is to
// run or to be a device. The directory can only be reached by who was given a mount of it.
func (Tmpfs) Mount(t tmpfs) error {
	if isMounted(t.dir) {
		return nil
	}
	return unix.Mount(mountSource, t.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("size=%d,mode=%o", t.size, t.mode))
}

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
