// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// loaded is the file of procfs that exists while the driver's kernel module is loaded.
const loaded = "driver/nvidia/version"

// driverFiles finds the NVIDIA driver's library and reports whether the driver is still present. It is used by one goroutine.
type driverFiles struct {
	config *Config
	// reportsLoaded is set if procfs reports whether the driver is loaded.
	reportsLoaded bool
	library       string // path where the driver's library was last found
	root          string // the driver's root as this process sees it, while the driver is in use
}

// options returns the places to search for the driver.
func (d *driverFiles) options() nvml.Options {
	roots := driverroot.Here(d.config.driverRoots())
	return nvml.Options{
		DriverRoot:  roots[0],
		OtherRoots:  roots[1:],
		Probe:       nvml.ProbeLibrary,
		LibraryPath: d.config.NVMLLibrary,
		Sysfs:       os.DirFS(d.config.Sysfs).(fs.ReadLinkFS),
		Procfs:      os.DirFS(d.config.Procfs),
	}
}

// used notes the root in which the driver was found. Not on every machine with GPUs does procfs report whether the driver is
// loaded.
func (d *driverFiles) used(root string) {
	d.root = root
	_, err := os.Stat(d.loadedFile())
	d.reportsLoaded = err == nil
}

// released notes that the driver is no longer used: it may come back in any root.
func (d *driverFiles) released() { d.root, d.library = "", "" }

// missing returns which part of the driver is missing; nil if it is complete. While the driver is in use, only its own root is searched,
// as another one may contain the library of a driver that is not running.
func (d *driverFiles) missing() error {
	if d.library == "" || absent(d.library) != nil { // searching takes milliseconds, every two seconds
		opts := d.options()
		if d.root != "" {
			opts.DriverRoot, opts.OtherRoots = d.root, nil
		}
		var err error
		if d.library, err = nvml.FindLibrary(opts); err != nil {
			return err
		}
	}
	if err := absent(d.loadedFile()); err != nil && d.reportsLoaded {
		return fmt.Errorf("%w: %w", gpu.ErrDriverNotLoaded, err)
	}
	return nil
}

// absent returns an error if a file certainly does not exist: others, such as of a disk, are no reason to release the driver.
func absent(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *driverFiles) loadedFile() string { return filepath.Join(d.config.Procfs, loaded) }

// rootOf returns the driver root that this process sees as the given directory.
func (c *Config) rootOf(here string) driverroot.Root {
	roots := c.driverRoots()
	for _, r := range roots {
		if r.Here == here {
			return r
		}
	}
	return roots[0]
}

// releasedFile exists while the driver is released.
const releasedFile = "released"

// releaseMarker is a file that exists while the driver is released by the node's label: a plugin that starts then reads the
// label before it uses the driver. Otherwise it need not wait for the API server.
type releaseMarker struct {
	config *Config
}

func (m releaseMarker) path() string { return filepath.Join(m.config.pluginDir(), releasedFile) }

func (m releaseMarker) exists() bool {
	_, err := os.Stat(m.path())
	return err == nil
}

// set creates or removes the file.
func (m releaseMarker) set(ctx context.Context, released bool) {
	err := os.Remove(m.path())
	if released {
		err = os.WriteFile(m.path(), nil, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Could not save whether the driver is released")
	}
}
