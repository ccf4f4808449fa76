// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// quietPeriod is how long files must not have changed before they are read again: editors and the kubelet change a file in
// several steps.
const quietPeriod = 100 * time.Millisecond

// mountLink is the link that the kubelet points to another directory when a mounted ConfigMap changes.
const mountLink = "..data"

// Watch calls changed after a file, or one of a directory, may have changed, until ctx ends. Events can be lost, and targets of
// links elsewhere are not watched: also read the files at intervals.
//
// The directory that the path is in is watched, since a file that is replaced is another file, and a path that does not
// exist yet may be created.
func Watch(ctx context.Context, path string, changed func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer func() { _ = watcher.Close() }()
	path = filepath.Clean(path)
	if err := watch(watcher, path); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	var quiet <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-watcher.Events:
			if !ok {
				return fmt.Errorf("watch %s: the events ended", path)
			}
			if concerns(event.Name, path) {
				quiet = time.After(quietPeriod)
			}
		case err, ok := <-watcher.Errors:
			if !ok {
				return fmt.Errorf("watch %s: the events ended", path)
			}
			klog.FromContext(ctx).Error(err, "Watching failed; events may be lost", "path", path)
			quiet = time.After(quietPeriod)
		case <-quiet:
			quiet = nil
			if err := watch(watcher, path); err != nil { // it may be another directory now
				klog.FromContext(ctx).Error(err, "Could not watch again; changes are seen late", "path", path)
			}
			changed()
		}
	}
}

// watch adds the directories to watch; existing watches stay.
func watch(watcher *fsnotify.Watcher, path string) error {
	if err := watcher.Add(filepath.Dir(path)); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return watcher.Add(path)
	}
	return nil
}

// concerns reports whether a change of one path may affect another.
func concerns(name, path string) bool {
	name = filepath.Clean(name)
	return name == path || filepath.Dir(name) == path || name == filepath.Join(filepath.Dir(path), mountLink)
}
