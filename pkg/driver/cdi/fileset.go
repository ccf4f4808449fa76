// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// fileSet is a set of frequently checked files in a few directories. While none of these has changed, a check costs one stat per
// directory.
type fileSet struct {
	files []string
	dirs  []string

	mu sync.Mutex
	// stamps of dirs when all files were there; nil if that is not known.
	stamps []store.Stamp
}

func newFileSet(files []string) *fileSet {
	s := &fileSet{files: files}
	for _, f := range files {
		s.dirs = append(s.dirs, filepath.Dir(f))
	}
	slices.Sort(s.dirs)
	s.dirs = slices.Compact(s.dirs)
	return s
}

// check returns the error of the first file that is not there.
func (s *fileSet) check(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamps, reliable := store.StampsOf(s.dirs, now)
	if stamps != nil && slices.Equal(stamps, s.stamps) {
		return nil
	}
	s.stamps = nil
	for _, file := range s.files {
		if _, err := os.Lstat(file); err != nil {
			return err
		}
	}
	if reliable {
		s.stamps = stamps
	}
	return nil
}
