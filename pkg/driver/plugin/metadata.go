// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
)

// metadataDir is where the helper keeps the device metadata of claims (KEP-5304), in the directory of the driver name:
// <namespace>_<claim>/<request>/metadata.json. It is a link into the directory of CDI specs, which is in memory: on a disk,
// creating three inodes per claim takes longer than the rest of Prepare. For each request there is also a CDI spec
// that mounts the file, "<driver>_metadata_<claim UID>_<request>.json".
const metadataDir = "dra-device-metadata"

// formerMetadataDir is the link of an earlier --cdi-dir, where containers that were started before have their metadata.
const formerMetadataDir = metadataDir + ".before"

// metadataTarget is the target of that link. Container runtimes do not read specs from subdirectories.
func metadataTarget(c *Config, driver string) string {
	return filepath.Join(c.CDIDir, driver+"-metadata")
}

// metadataPlaces returns the directories in which the device metadata of containers is, that of other driver names included: the directory
// of CDI specs, and those of drivers, where earlier releases had it. It returns none if it may be anywhere, as of another --cdi-dir, which
// this process does not see.
func metadataPlaces(c *Config) []string {
	found, err := filepath.Glob(filepath.Join(c.PluginsDir, "*", metadataDir+"*"))
	if err != nil {
		return nil
	}
	places := []string{c.CDIDir}
	for _, path := range found {
		dir := filepath.Dir(path)
		to, err := os.Readlink(path)
		if filepath.Base(path) == formerMetadataDir || err == nil && to != metadataTarget(c, filepath.Base(dir)) {
			return nil
		}
		places = append(places, dir)
	}
	return places
}

// metadataFiles manages device metadata. The helper writes it after a claim's record and removes it after Unprepare;
// sweep removes the metadata of claims that are released in another way.
type metadataFiles struct {
	// mu prevents sweep from deciding on a claim while its directory is being created.
	mu sync.RWMutex

	specsMu sync.Mutex
	// specs are the CDI specs that this process wrote, by the common prefix of the paths of a claim's specs: otherwise
	// each Unprepare would have to read the whole directory to find them.
	specs map[string][]string
}

// open creates the directory of a driver name, and the link to it. A directory in place of the link, of another driver or release,
// is used as it is.
func (m *metadataFiles) open(c *Config, driver string) error {
	target, link := metadataTarget(c, driver), filepath.Join(c.PluginsDir, driver, metadataDir)
	//nolint:gosec // containers read it, even as host users without any rights
	err := os.MkdirAll(target, 0o755)
	if to, readErr := os.Readlink(link); readErr == nil && to != target { // of another --cdi-dir
		err = errors.Join(err, os.Rename(link, filepath.Join(filepath.Dir(link), formerMetadataDir)))
	}
	if err == nil {
		err = os.Symlink(target, link)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the directory for device metadata: %w", err)
	}
	return nil
}

// options make the helper write device metadata in a single version: a plain decoder cannot read a file with several JSON documents.
// failed is called for failed writes, which the helper only logs.
func (m *metadataFiles) options(ctx context.Context, c *Config, driver string, failed func()) []kubeletplugin.Option {
	// Failed removals are left to sweep: the claim is unprepared, and its pod must not wait for this.
	report := func(err error) {
		if err != nil {
			klog.FromContext(ctx).Error(err, "Removing device metadata failed; retrying at the next reconcile", "driver", driver)
		}
	}
	count := func(err error) error {
		if err != nil {
			failed()
		}
		return err
	}
	return []kubeletplugin.Option{
		kubeletplugin.EnableDeviceMetadata(true, []schema.GroupVersion{metadatav1beta1.SchemeGroupVersion}),
		kubeletplugin.CDIDirectory(c.CDIDir),
		kubeletplugin.MetadataFileOps(kubeletplugin.MetadataFileOperations{
			WriteFile: func(path string, data []byte, mode os.FileMode) error {
				return count(m.write(c.CDIDir, path, data, mode))
			},
			MkdirAll: func(path string, mode os.FileMode) error {
				return count(m.mkdir(metadataTarget(c, driver), path, mode))
			},
			RemoveAll: func(path string) error { report(os.RemoveAll(path)); return nil },
			Remove:    func(path string) error { report(ignoreMissing(os.Remove(path))); return nil },
			Glob:      m.find,
		}),
	}
}

// mkdir creates the directory of a request's metadata, below that of its claim. target is the target of the link in its path.
func (m *metadataFiles) mkdir(target, path string, mode os.FileMode) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if info, err := os.Stat(path); err == nil && info.IsDir() { // usually the directory of CDI specs
		return nil
	}
	for _, dir := range []string{filepath.Dir(path), path} {
		err := os.Mkdir(dir, mode)
		if errors.Is(err, fs.ErrNotExist) { // the directory of CDI specs was emptied
			if err = os.MkdirAll(target, mode); err == nil {
				err = os.Mkdir(dir, mode)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// write writes a metadata file, or the CDI spec that mounts it. Metadata is not read before its CDI spec exists.
func (m *metadataFiles) write(cdiDir, path string, data []byte, mode os.FileMode) error {
	if filepath.Dir(path) != cdiDir {
		if err := createFile(path, data, mode); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return replaceFile(path, data, mode)
	}
	if err := replaceFile(path, data, mode); err != nil {
		return err
	}
	m.specsMu.Lock()
	defer m.specsMu.Unlock()
	if m.specs == nil {
		m.specs = map[string][]string{}
	}
	begin := path[:strings.LastIndexByte(path, '_')+1]
	if !slices.Contains(m.specs[begin], path) {
		m.specs[begin] = append(m.specs[begin], path)
	}
	return nil
}

// find returns the CDI specs of a claim, for the helper's pattern. Only specs written by another process are searched for.
func (m *metadataFiles) find(pattern string) ([]string, error) {
	begin := strings.TrimSuffix(pattern, "*.json")
	m.specsMu.Lock()
	specs := m.specs[begin]
	delete(m.specs, begin)
	m.specsMu.Unlock()
	if specs != nil {
		return specs, nil
	}
	return filepath.Glob(pattern)
}

// createFile writes a file that does not exist yet.
func createFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil { // it must not be taken for complete
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// replaceFile replaces a file atomically. It does not sync, which would slow down Prepare: no file is needed after a power loss,
// as claims are then prepared again.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	return store.Replace(path, func(f *os.File) error {
		_, err := f.Write(data)
		return errors.Join(err, f.Chmod(mode))
	})
}

// sweep removes the metadata of claims without a record on disk, where another process may have prepared them. It removes nothing
// while a record is corrupt, or was set aside and its claim has metadata: the claim may be of a running pod. Unprepare removes that
// metadata, and Reconcile does if the API server has no such claim. Prepare waits for sweep only if there are leftovers.
func (m *metadataFiles) sweep(ctx context.Context, c *Config, driver string) {
	left, err := m.leftovers(c, driver)
	if err == nil && len(left) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		if left, err = m.leftovers(c, driver); err == nil { // a claim may have been prepared again meanwhile
			err = removeAll(left)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Removing device metadata of claims that are gone failed; retrying at the next reconcile",
			"driver", driver)
	}
}

// leftovers returns the files and directories of claims without a record, and makes find forget their specs.
func (m *metadataFiles) leftovers(c *Config, driver string) ([]string, error) {
	dir := filepath.Join(c.nodeDir(), records.ClaimsDir)
	all, corrupt, err := records.List(store.Disk{}, dir)
	if err != nil || len(corrupt) > 0 {
		return nil, err
	}
	aside, err := records.Aside(store.Disk{}, dir) // listed after the records, which may be set aside meanwhile
	if err != nil {
		return nil, err
	}
	left, err := metadataOf(c, driver, claims.Under(driver, all))
	former := filepath.Join(c.PluginsDir, driver, formerMetadataDir)
	if _, isNone := os.Lstat(former); isNone == nil && len(all)+len(aside) == 0 { // all containers have ended
		left = append(left, former)
	}
	if err != nil || slices.ContainsFunc(left, func(path string) bool {
		uid, ours := claimOfMetadata(filepath.Base(path), driver)
		return ours && slices.Contains(aside, uid)
	}) {
		return nil, err
	}
	m.specsMu.Lock()
	defer m.specsMu.Unlock()
	begin := filepath.Join(c.CDIDir, driver) + metadataInfix
	maps.DeleteFunc(m.specs, func(of string, _ []string) bool {
		uid, ours := strings.CutPrefix(strings.TrimSuffix(of, "_"), begin)
		return ours && !slices.ContainsFunc(all, func(r *records.Record) bool { return string(r.Claim.UID) == uid })
	})
	return left, nil
}

// metadataInfix separates the driver name and the claim's UID in the names of CDI specs.
const metadataInfix = "_metadata_"

// claimOfMetadata returns the claim of a CDI spec, given its file name or that of an interrupted write of it.
func claimOfMetadata(name, driver string) (uid types.UID, ours bool) {
	rest, ours := strings.CutPrefix(strings.TrimPrefix(name, "."), driver+metadataInfix)
	rest, _, _ = strings.Cut(rest, "_")
	return types.UID(rest), ours
}

// removeMetadata removes the device metadata of a driver name.
func removeMetadata(c *Config, driver string) error {
	all, err := metadataOf(c, driver, nil)
	return errors.Join(err, removeAll(all))
}

func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove device metadata: %w", err)
	}
	return nil
}

// metadataOf returns the directories and CDI specs of a driver name's device metadata, except for the claims of the given records.
func metadataOf(c *Config, driver string, except []*records.Record) ([]string, error) {
	var found []string
	var errs []error
	list := func(dir string, isLeft func(name string) bool) {
		entries, err := os.ReadDir(dir)
		errs = append(errs, ignoreMissing(err))
		for _, e := range entries {
			if isLeft(e.Name()) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	list(filepath.Join(c.PluginsDir, driver, metadataDir), func(name string) bool {
		return !slices.ContainsFunc(except, func(r *records.Record) bool { return r.Claim.Namespace+"_"+r.Claim.Name == name })
	})
	list(c.CDIDir, func(name string) bool { // including leftovers of interrupted writes
		uid, ours := claimOfMetadata(name, driver)
		return ours && !slices.ContainsFunc(except, func(r *records.Record) bool { return r.Claim.UID == uid })
	})
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("look for device metadata: %w", err)
	}
	return found, nil
}
