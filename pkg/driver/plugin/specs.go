// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/driverroot"
)

// maxSpecRetry is the longest time between two attempts to write an incomplete CDI spec: each runs nvidia-modprobe.
const maxSpecRetry = time.Minute

// specs manages the CDI spec of the node's GPUs.
type specs struct {
	// Static is nil before the driver was found.
	*cdi.Static
	// hook is the path of NVIDIA's hook program.
	hook string
	// closed is the GPU that is closed for its reset, if any.
	closed *closedGPU
}

// newStatic creates the CDI spec for claims of a driver name, with the driver's files in the given root.
func newStatic(s *service, here, driver, hookPath string, changed func()) (*cdi.Static, error) {
	config := &s.config
	root := config.rootOf(here)
	return cdi.NewStatic(cdi.Options{
		Driver: driver, Dir: config.CDIDir,
		DriverRoot: root.Host, ContainerDriverRoot: root.Here,
		Procfs: os.DirFS(config.Procfs), Sysfs: os.DirFS(config.Sysfs),
		HookPath:       hookPath,
		MemoryHookPath: filepath.Join(config.PluginsDir, driver, hook.MemoryLimit),
		CreateNodes: func(ctx context.Context, nodes driverroot.Nodes) error {
			return root.CreateNodes(ctx, config.Procfs, nodes)
		},
		Search:  s.specs.closed.search,
		Changed: changed,
	})
}

// keep keeps the CDI spec complete until ctx ends: it retries missing parts, notices parts that disappear
// within retry, and periodically rewrites the spec, as the driver may have more files by then.
func (s *specs) keep(ctx context.Context, inventory func() *gpu.Node, driverRetry, every time.Duration) {
	retry := driverRetry
	last := time.Now()
	for {
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if s.Complete(inventory()) == nil && time.Since(last) < every {
			retry = driverRetry
			continue
		}
		last = time.Now()
		err := s.Refresh(ctx, inventory())
		if errors.Is(err, gpu.ErrReleased) {
			last = time.Time{} // once the GPU is open again
		}
		if err != nil {
			klog.FromContext(ctx).V(4).Info("The CDI spec is still incomplete", "reason", err.Error())
		}
		if len(s.Problems()) > 0 && !last.IsZero() {
			retry = min(max(time.Since(last), 2*retry), maxSpecRetry)
		} else {
			retry = driverRetry
		}
	}
}

// incomplete returns why GPUs, by device name, cannot be injected into containers.
func (s *specs) incomplete() map[string]error {
	if s.Static == nil {
		return nil
	}
	return s.Problems()
}
