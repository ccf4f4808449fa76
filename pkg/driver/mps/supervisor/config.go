// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// What to do with a GPU's compute mode while an MPS server has it.
const (
	// ExclusiveMode reserves the GPU for the MPS server, so that processes that bypass MPS cannot run alongside it.
	ExclusiveMode = "exclusive"
	// KeepMode leaves the mode alone.
	KeepMode = "keep"
)

// Config configures a supervisor. Paths are as this process sees them, except DriverRoot.
type Config struct {
	Version string
	// Dir holds the socket, the state and the directories of daemons. Containers mount from it: it has the same path on the host.
	Dir string

	// DriverRoot is the root of the driver's files on the host, ContainerDriverRoot the same directory as this process
	// sees it; empty if that is the same path. With driverroot.Auto, ContainerDriverRoot is where it sees the host's /.
	DriverRoot          string
	ContainerDriverRoot string
	// NVMLLibrary is libnvidia-ml.so.1; empty to look for it under the driver root.
	NVMLLibrary string
	// ComputeMode is ExclusiveMode or KeepMode.
	ComputeMode string

	// DaemonCgroup is a directory of the cgroup v2 file system in which each daemon gets a cgroup; empty to leave them in the
	// supervisor's cgroup, so that a container runtime kills them with the supervisor.
	DaemonCgroup string

	// StartTimeout bounds the start of a daemon, StopTimeout each of the three ways to stop one.
	StartTimeout, StopTimeout time.Duration
}

// maxDir leaves room for the names of MPS's sockets, whose paths the kernel limits to 107 bytes.
const maxDir = 50

// Validate reports every invalid field, by its flag.
func (c *Config) Validate() error {
	var errs []error
	for _, dir := range []struct {
		flag, path string
		optional   bool
	}{
		{"--dir", c.Dir, false}, {"--container-driver-root", c.ContainerDriverRoot, true},
		{"--nvml-library", c.NVMLLibrary, true}, {"--daemon-cgroup", c.DaemonCgroup, true},
	} {
		if !filepath.IsAbs(dir.path) && (dir.path != "" || !dir.optional) {
			errs = append(errs, fmt.Errorf("%s %q is not an absolute path", dir.flag, dir.path))
		}
	}
	if c.DriverRoot != driverroot.Auto && !filepath.IsAbs(c.DriverRoot) {
		errs = append(errs, fmt.Errorf("--driver-root %q is neither an absolute path nor %s", c.DriverRoot, driverroot.Auto))
	}
	if len(c.Dir) > maxDir || strings.ContainsFunc(c.Dir, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		errs = append(errs, fmt.Errorf("--dir %q has more than %d characters, or spaces: sockets could not be created in it", c.Dir, maxDir))
	}
	if filepath.Clean(c.Dir) == "/" {
		errs = append(errs, errors.New("--dir / cannot be used: give a directory of its own"))
	}
	if c.ComputeMode != ExclusiveMode && c.ComputeMode != KeepMode {
		errs = append(errs, fmt.Errorf("--compute-mode %q is not one of %s, %s", c.ComputeMode, ExclusiveMode, KeepMode))
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"--start-timeout", c.StartTimeout}, {"--stop-timeout", c.StopTimeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s %s is not above zero", d.flag, d.value))
		}
	}
	return errors.Join(errs...)
}

// driverRoots are where to look for the driver, as this process sees them.
func (c *Config) driverRoots() []string {
	return driverroot.Here(driverroot.Candidates(c.DriverRoot, c.ContainerDriverRoot))
}
