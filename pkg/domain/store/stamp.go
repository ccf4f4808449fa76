// SPDX-License-Identifier: Apache-2.0

package store

import (
	"slices"
	"syscall"
	"time"
)

// Stamp changes when an entry of a directory is created, renamed or removed, or another directory takes its place. It does not
// cover the contents of entries.
type Stamp struct {
	dev, ino     uint64
	mtime, ctime syscall.Timespec
}

// settled is the age at which a change is certain to be reflected completely in the stamp: a directory that changes twice within a
// tick of the file system's clock, which is up to two seconds, has the same stamp after both.
const settled = 2 * time.Second

// StampsOf returns the stamps of directories, and whether equal stamps mean that nothing has changed: not if a
// directory cannot be read, or has only just changed.
func StampsOf(dirs []string, now time.Time) (stamps []Stamp, reliable bool) {
	for _, dir := range dirs {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err != nil {
			return nil, false
		}
		stamps = append(stamps, Stamp{st.Dev, st.Ino, st.Mtim, st.Ctim})
	}
	return stamps, !slices.ContainsFunc(stamps, func(s Stamp) bool {
		return now.Sub(time.Unix(s.ctime.Unix())) < settled || now.Sub(time.Unix(s.mtime.Unix())) < settled
	})
}
