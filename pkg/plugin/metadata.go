// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/names"
	"github.com/cleave-dra/cleave/pkg/records"
	"github.com/cleave-dra/cleave/pkg/store"
)

// metadataDir is where the helper keeps the device metadata of claims (KEP-5304), in the directory of the driver's name:
// <namespace>_<claim>/<request>/metadata.json. It is a link into the directory of CDI specs, which lies in memory: on a disk,
// making three inodes for each claim takes longer than all else that Prepare does. For each request there is also a CDI spec
// that mounts the file, "<driver>_metadata_<claim UID>_<request>.json".
const metadataDir = "dra-device-metadata"

// metadataTarget is where that link leads. Container runtimes read no specs from directories below theirs.
func metadataTarget(c *Config, driver string) string {
	return filepath.Join(c.CDIDir, driver+"-metadata")
}

// metadataFiles are the files of device metadata. The helper writes them after a claim's record and removes them after Unprepare;
// sweep removes those of claims that are released in another way.
type metadataFiles struct {
	// mu keeps sweep from deciding on a claim while its directory is made.
	mu sync.RWMutex
}

// open makes the directory of a driver's name. One that is no link, of another driver or release, is used as it is.
func (m *metadataFiles) open(c *Config, driver string) error {
	target := metadataTarget(c, driver)
	err := os.MkdirAll(target, 0o755) //nolint:gosec // containers read it, also as users of the host without any rights
	if err == nil {
		err = os.Symlink(target, filepath.Join(c.PluginsDir, driver, metadataDir))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the directory for device metadata: %w", err)
	}
	return nil
}

// options have the helper write device metadata, of one version: a file with several is no JSON document for a plain decoder.
func (m *metadataFiles) options(cdiDir string) []kubeletplugin.Option {
	return []kubeletplugin.Option{
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.CDIDirectory(cdiDir),
		kubeletplugin.MetadataFileOps(kubeletplugin.MetadataFileOperations{WriteFile: replaceFile, MkdirAll: m.mkdirAll}),
	}
}

func (m *metadataFiles) mkdirAll(path string, mode os.FileMode) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return os.MkdirAll(path, mode)
}

// replaceFile replaces a file at once. It does not sync, which would make Prepare slower: no file is needed after a power cut,
// as claims are then prepared anew.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	next, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = next.Write(data)
	err = errors.Join(err, next.Chmod(mode), next.Close())
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next.Name()))
	}
	return nil
}

// sweep removes the metadata of claims that have no record on disk, where another process may have prepared them. While there
// is a corrupt record it removes none.
func (m *metadataFiles) sweep(ctx context.Context, c *Config, driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := filepath.Join(c.PluginsDir, driver)
	all, corrupt, err := records.List(store.Disk{}, filepath.Join(dir, names.Claims))
	if err == nil && len(corrupt) == 0 {
		err = removeMetadata(c, driver, all)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Removing device metadata of claims that are gone failed; it is tried again at the next reconcile",
			"driver", driver)
	}
}

// removeMetadata removes the device metadata of a driver name, except that of the claims of records.
func removeMetadata(c *Config, driver string, keep []*records.Record) error {
	dir := filepath.Join(c.PluginsDir, driver, metadataDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	errs := []error{err}
	for _, e := range entries {
		isOf := func(r *records.Record) bool { return r.Claim.Namespace+"_"+r.Claim.Name == e.Name() }
		if !slices.ContainsFunc(keep, isOf) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	prefix := driver + "_metadata_"
	specs, err := os.ReadDir(c.CDIDir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	errs = append(errs, err)
	for _, e := range specs { // and what an interrupted write has left
		uid, ours := strings.CutPrefix(strings.TrimPrefix(e.Name(), "."), prefix)
		uid, _, _ = strings.Cut(uid, "_")
		isOf := func(r *records.Record) bool { return string(r.Claim.UID) == uid }
		if ours && !slices.ContainsFunc(keep, isOf) {
			errs = append(errs, ignoreMissing(os.Remove(filepath.Join(c.CDIDir, e.Name()))))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove device metadata: %w", err)
	}
	return nil
}
