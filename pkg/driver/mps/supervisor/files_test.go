// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestHasSELinux(t *testing.T) {
	for text, want := range map[string]bool{
		"nodev\tsysfs\nnodev\tselinuxfs\n\text4\n": true,
		"nodev\tsysfs\n\text4\n":                   false,
		"nodev\tmyselinuxfs\n":                     false,
	} {
		if got := HasSELinux(fstest.MapFS{"filesystems": {Data: []byte(text)}}); got != want {
			t.Errorf("HasSELinux with %q = %t", text, got)
		}
	}
	if HasSELinux(fstest.MapFS{}) {
		t.Error("HasSELinux without /proc/filesystems")
	}
}

func TestTmpfs_Label(t *testing.T) {
	const label = "size=1,nr_inodes=1024,mode=755,context=system_u:object_r:container_file_t:s0"
	tests := map[string]struct {
		selinux bool
		answers []error
		want    []string
		err     error
	}{
		"no SELinux":           {false, []error{nil}, []string{"size=1,nr_inodes=1024,mode=755"}, nil},
		"SELinux":              {true, []error{nil}, []string{label}, nil},
		"a policy without it":  {true, []error{unix.EINVAL, nil}, []string{label, "size=1,nr_inodes=1024,mode=755"}, nil},
		"it may not be given":  {true, []error{unix.EACCES, nil}, []string{label, "size=1,nr_inodes=1024,mode=755"}, nil},
		"the mount is refused": {true, []error{unix.EPERM, unix.EPERM}, []string{label, "size=1,nr_inodes=1024,mode=755"}, unix.EPERM},
		"no memory":            {true, []error{unix.ENOMEM}, []string{label}, unix.ENOMEM},
	}
	for name, tt := range tests {
		var got []string
		err := (Tmpfs{SELinux: tt.selinux}).try(t.Context(), tmpfs{"/x", 1, 0o755}.options(), func(options string) error {
			got = append(got, options)
			return tt.answers[len(got)-1]
		})
		equal(t, name+": mounted with", tt.want, got)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
		}
	}
}

// A kernel that does not know the option, or not the label, mounts all the same.
func TestTmpfs_LabelUnknown(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	m, dir := Tmpfs{SELinux: true}, t.TempDir()
	if err := m.Mount(t.Context(), tmpfs{dir, 4096, 0o711}); err != nil || !isMounted(dir) {
		t.Fatalf("Mount = %v, mounted %t", err, isMounted(dir))
	}
	if err := m.Unmount(dir); err != nil || isMounted(dir) {
		t.Errorf("Unmount = %v", err)
	}
}
