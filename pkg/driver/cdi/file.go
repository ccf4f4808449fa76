// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// specDir is the directory that container runtimes read specs from.
type specDir struct {
	path string
	// cache writes specs. It is created once, because that parses every spec in the directory.
	cache *cdi.Cache
}

func openSpecDir(path string) (*specDir, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(path), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("open the CDI directory %s: %w", path, err)
	}
	return &specDir{path: path, cache: cache}, nil
}

// write writes a spec atomically.
func (d *specDir) write(spec *specs.Spec, file string) error {
	if err := os.MkdirAll(d.path, 0o755); err != nil { //nolint:gosec // runtimes and their users read this directory
		return fmt.Errorf("create the CDI directory: %w", err)
	}
	if err := d.cache.WriteSpec(spec, file); err != nil {
		return fmt.Errorf("write the CDI spec %s: %w", filepath.Join(d.path, file), err)
	}
	return nil
}

type specFile struct {
	dir  *specDir
	name string

	mu      sync.Mutex
	written os.FileInfo // of the file when it was last known to be correct
}

// distrust makes the next restore read the file.
func (f *specFile) distrust() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written = nil
}

// restore writes the present spec if its file is missing or was changed. Otherwise it costs one stat.
func (f *specFile) restore(ctx context.Context, present func() (*specs.Spec, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	spec, err := present() // by others that have waited for mu as well
	if err != nil {
		return err
	}
	path := filepath.Join(f.dir.path, f.name)
	info, err := os.Lstat(path)
	if w := f.written; err == nil && w != nil && os.SameFile(info, w) && info.ModTime().Equal(w.ModTime()) && info.Size() == w.Size() {
		return nil
	}
	want, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, want) {
		klog.FromContext(ctx).Info("Writing the CDI spec: it is missing or out of date", "path", path)
		if err := f.dir.write(spec, f.name); err != nil {
			return err
		}
	}
	if f.written, err = os.Lstat(path); err != nil {
		return fmt.Errorf("stat the CDI spec: %w", err)
	}
	return nil
}
