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

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// specDir is the directory that container runtimes read specs from.
type specDir struct{ path string }

// openSpecDir removes what writes that were cut short have left of a driver's specs. Files spec.*.tmp are of the CDI library's own writer
// (pkg/cdi/spec.go, write), which releases before used: it left them where a disk was full, too.
func openSpecDir(path, driver string) *specDir {
	for _, pattern := range []string{"." + driver + "-*.json.*", "spec.*.tmp"} {
		_ = store.RemoveOld(filepath.Join(path, pattern)) // otherwise the next start does
	}
	return &specDir{path}
}

// write writes a spec atomically, unless a runtime could not read it. A failed write leaves nothing behind.
func (d *specDir) write(spec *specs.Spec, file string) error {
	if err := os.MkdirAll(d.path, 0o755); err != nil { //nolint:gosec // runtimes and their users read this directory
		return fmt.Errorf("create the CDI directory: %w", err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	path := filepath.Join(d.path, file)
	err = store.Replace(path, func(f *os.File) error {
		if _, err := f.Write(data); err != nil {
			return err
		}
		_, err := cdi.ReadSpec(f.Name(), 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the CDI spec %s: %w", path, err)
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
