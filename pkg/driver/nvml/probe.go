// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// probeTimeout bounds the probe of one library: a broken driver may hang.
const probeTimeout = 15 * time.Second

// ProbeCommand is the hidden subcommand of cleave that ProbeLibrary runs.
const ProbeCommand = "nvml-probe"

// ErrOtherLibrary means that the driver needs another library than this process has loaded, so the program must re-execute
// itself: symbols stay bound to the first library, whether it works or not (dlopen(3), RTLD_GLOBAL).
var ErrOtherLibrary = errors.New("this process has loaded another management library")

// Probe checks whether the management library at a path is usable: nil if nvmlInit succeeds.
type Probe func(ctx context.Context, path string) error

// ProbeLibrary is a Probe that runs in a child process of this program.
func ProbeLibrary(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", ProbeCommand, path)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("nvmlInit did not return: %w", ctx.Err())
	default:
		return errors.New(strings.TrimSpace(strings.TrimPrefix(string(output[:min(len(output), 1024)]), "cleave: ")))
	}
}

// InitLibrary initialises a library in this process and shuts it down.
func InitLibrary(path string) error {
	lib := newRealLibrary(path)
	if err := lib.Init(); err != nil {
		return err
	}
	return lib.Shutdown()
}

// candidate is a management library with its driver root.
type candidate struct{ path, root string }

// choose picks the first usable library. A stale library, such as that of a package on the host, must not hide the one of
// the running driver, such as that of the GPU operator's container. A single candidate is not probed: its use will show
// whether it works.
func choose(ctx context.Context, found []candidate, probe Probe) (candidate, error) {
	if len(found) == 1 || probe == nil {
		return found[0], nil
	}
	var errs []error
	for _, c := range found {
		err := probe(ctx, c.path)
		if err == nil {
			return c, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.path, err))
	}
	return candidate{}, fmt.Errorf("none of the driver's libraries is usable: %w", errors.Join(errs...))
}

// loaded is the library that this process has loaded, even if it could not be initialised.
var loaded struct {
	sync.Mutex
	path string
	file os.FileInfo
}

// mayLoad fails if this process has loaded another library.
func mayLoad(path string) error {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path == "" || loaded.path == path {
		return nil
	}
	if file, err := os.Stat(path); err == nil && os.SameFile(loaded.file, file) {
		return nil
	}
	return fmt.Errorf("%w: %s, but the driver's is now %s", ErrOtherLibrary, loaded.path, path)
}

// noteLoaded records which library this process has loaded, after an attempt to initialise it. A file that is not a
// library was not loaded.
func noteLoaded(path string, outcome error) {
	if errors.Is(outcome, gpu.ErrLibraryNotFound) {
		return
	}
	loaded.Lock()
	defer loaded.Unlock()
	if file, err := os.Stat(path); err == nil {
		loaded.path, loaded.file = path, file
	}
}
