// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

// locksDir has the locks of GPUs, in the directory that all plugins of a node share.
const locksDir = "locks"

// uninstallTimeout bounds checking whether the plugin was uninstalled: a terminating pod has little time.
const uninstallTimeout = 5 * time.Second

// watchTimeout bounds the wait for the watch if the plugin may no longer query the API server.
const watchTimeout = 3 * time.Second

// installationWatch follows the plugin's DaemonSet (cluster.Watcher).
type installationWatch interface {
	DaemonSetGone() bool
	AwaitDaemonSetGone(ctx context.Context) bool
}

// leave is called when a plugin has ended. If it was uninstalled, nothing is allocated and no other plugin is running, it removes its
// files. Otherwise they stay for the next plugin.
func (s *service) leave(ctx context.Context) {
	defer s.nodeLease.release()
	defer s.lease.release()
	if s.config.DaemonSet == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uninstallTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	gone, err := uninstalled(ctx, s.client, s.config.DaemonSet, s.cluster)
	if err != nil {
		logger.Error(err, "Keeping the plugin's files: it may only be restarting")
	}
	if err != nil || !gone {
		return
	}
	s.labels.Leave(ctx)
	if !s.lease.alone() {
		logger.Info("Keeping the plugin's files for another running plugin", "dir", s.config.pluginDir())
		return
	}
	if err := s.sharedFiles(ctx); err != nil {
		logger.Error(err, "Keeping the plugin's files: some may be another driver's", "dir", s.config.pluginDir())
		return
	}
	switch allocated, err := removeFiles(ctx, &s.config, s.nodeLease.alone()); {
	case err != nil:
		logger.Error(err, "Removing the plugin's files failed")
	case allocated > 0:
		logger.Info("Uninstalled with claims allocated: keeping the plugin's files for the next plugin", "claims", allocated,
			"dir", s.config.pluginDir())
	default:
		logger.Info("Uninstalled: removed the plugin's files", "dir", s.config.pluginDir())
	}
}

// uninstalled reports whether the DaemonSet of the plugin is gone. This requires the API server's answer that there is none, now or in
// the watch that followed it: a plugin that may not ask may have lost its permissions by mistake. An
// uninstalled one usually has: Helm deletes the DaemonSet first (InstallOrder of helm.sh/helm/v3/pkg/releaseutil), and the
// permissions while its pods are still terminating. Then the function waits for the watch, which needed them only at its start: its
// event may arrive after the termination signal.
func uninstalled(ctx context.Context, client kubernetes.Interface, daemonSet string, watch installationWatch) (bool, error) {
	namespace, name, _ := strings.Cut(daemonSet, "/")
	found, err := client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return found.DeletionTimestamp != nil, nil
	case apierrors.IsNotFound(err) || watch.DaemonSetGone():
		return true, nil
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		if watch.AwaitDaemonSetGone(ctx) {
			return true, nil
		}
	}
	return false, fmt.Errorf("read DaemonSet %s: %w", daemonSet, err)
}

// removeFiles removes what the plugin keeps on the node, unless claims are allocated, which it counts. last says that no plugin of
// another driver name runs: then what all names share goes, too, and what is left of former names.
func removeFiles(ctx context.Context, c *Config, last bool) (allocated int, err error) {
	all, corrupt, err := records.List(store.Disk{}, filepath.Join(c.nodeDir(), records.ClaimsDir))
	if err != nil {
		return 0, err
	}
	if !last {
		all = claims.Under(c.DriverName, all)
	}
	if n := len(all) + len(corrupt); n > 0 {
		return n, nil
	}
	errs := []error{removeMetadata(c, c.DriverName), removeName(ctx, c, c.DriverName)}
	if last {
		former, err := names.Find(c.PluginsDir, c.DriverName)
		errs = append(errs, err)
		for _, driver := range former {
			_, err := retireName(ctx, c, driver)
			errs = append(errs, err)
		}
		errs = append(errs, removeShared(c))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("remove the plugin's files: %w", err)
	}
	return 0, nil
}

// removeShared removes the files that plugins of a node share, except records that were set aside as corrupt, which may be of interest.
// Records of layouts stay as long as their partitions, as does the driver's session: without both the next plugin would consider those
// unmanaged. Records of interrupted MIG mode changes stay too: the next plugin finishes the changes, and restores the GPU's
// persistence mode.
func removeShared(c *Config) error {
	errs := []error{removeEmptyLayouts(filepath.Join(c.nodeDir(), records.LayoutsDir))}
	for _, dir := range []string{records.ClaimsDir, records.LayoutsDir, records.ModesDir} {
		errs = append(errs, removeRecords(filepath.Join(c.nodeDir(), dir)))
	}
	files := []string{locksDir, hook.NVIDIA, records.ResetFile, sessionFile, names.Running} // the lock last: it keeps plugins from starting
	if keepsLayouts(c) {
		files = []string{locksDir, hook.NVIDIA, records.ResetFile, names.Running}
	}
	for _, file := range files {
		errs = append(errs, os.RemoveAll(filepath.Join(c.nodeDir(), file)))
	}
	_ = os.Remove(c.nodeDir()) // stays if it is a mount
	return errors.Join(errs...)
}

// removeEmptyLayouts removes the records of layouts without existing partitions.
func removeEmptyLayouts(dir string) error {
	all, _, err := records.ListLayouts(store.Disk{}, dir)
	if err != nil || len(all) == 0 {
		return err
	}
	layouts, err := records.OpenLayouts(store.Disk{}, dir)
	if err != nil {
		return err
	}
	for _, l := range all {
		if len(l.Places) == 0 {
			err = errors.Join(err, layouts.Remove(l.GPU))
		}
	}
	return err
}

// keepsLayouts reports whether records of layouts are left, as their partitions may exist.
func keepsLayouts(c *Config) bool {
	all, corrupt, err := records.ListLayouts(store.Disk{}, filepath.Join(c.nodeDir(), records.LayoutsDir))
	return len(all) > 0 || len(corrupt) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// removeRecords removes a directory of records with its temporary files, but no records: corrupt ones and copies are in separate
// directories.
func removeRecords(dir string) error {
	var errs []error
	for _, d := range []string{filepath.Join(dir, "copies"), dir} {
		entries, err := os.ReadDir(d)
		errs = append(errs, ignoreMissing(err))
		for _, e := range entries {
			if !e.IsDir() && strings.HasPrefix(e.Name(), ".") {
				errs = append(errs, os.Remove(filepath.Join(d, e.Name())))
			}
		}
	}
	for _, d := range []string{filepath.Join(dir, "corrupt"), filepath.Join(dir, "copies"), dir} {
		_ = os.Remove(d) // fails if there is a record
	}
	return errors.Join(errs...)
}

// sharedFiles returns why the plugin's directory may contain files of another driver of the same name, which uses the same directory;
// nil if it does not.
func (s *service) sharedFiles(ctx context.Context) error {
	switch {
	case !s.config.compatible():
		return nil
	case s.helper == nil:
		return fmt.Errorf("it never served: another driver named %s may have been there", s.config.DriverName)
	}
	return s.nameConflict().findPlugin(ctx)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
