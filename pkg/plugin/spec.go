// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
)

// maxSpecRetry is the longest time between two attempts to make a CDI spec that lacks something: each runs nvidia-modprobe.
const maxSpecRetry = time.Minute

// staticSpec is the CDI spec of the node's GPUs, as the service keeps it.
type staticSpec struct {
	*cdi.Static
	// hook is the path of NVIDIA's hook program.
	hook string
	// changed has a value after other GPUs than before cannot be given to containers.
	changed chan struct{}
	// told is what was last reported; only touched by the goroutine that keeps things in line.
	told map[string]error
}

// openSpec makes the CDI spec's keeper for the driver that was found.
func (s *service) openSpec(session *nvml.Session) error {
	s.spec.changed = make(chan struct{}, 1)
	static, err := s.newStatic(session, s.config.DriverName, s.spec.hook, func() { signal(s.spec.changed) })
	s.spec.Static = static
	return err
}

// newStatic is the CDI spec's keeper for claims of a driver's name.
func (s *service) newStatic(session *nvml.Session, driver, hookPath string, changed func()) (*cdi.Static, error) {
	root := s.driverRoot(session)
	return cdi.NewStatic(cdi.Options{
		Driver: driver, Dir: s.config.CDIDir,
		DriverRoot: root.Host, ContainerDriverRoot: root.Here,
		Procfs: os.DirFS(s.config.Procfs), Sysfs: os.DirFS(s.config.Sysfs),
		HookPath:       hookPath,
		MemoryHookPath: filepath.Join(s.config.PluginsDir, driver, hook.MemoryLimit),
		CreateNodes: func(ctx context.Context, nodes driverroot.Nodes) error {
			return root.CreateNodes(ctx, s.config.Procfs, nodes)
		},
		Changed: changed,
	})
}

// keepSpec keeps the CDI spec complete until ctx ends: what is missing is looked for again and again, what vanishes is
// noticed within --driver-retry, and every --reconcile-every all of it is made anew, as the driver may have more files by
// then.
func (s *service) keepSpec(ctx context.Context, hw *hardware) {
	retry := s.config.DriverRetry
	last := time.Now()
	for {
		timer := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if s.spec.Complete(hw.Session.Node()) == nil && time.Since(last) < s.config.ReconcileEvery {
			retry = s.config.DriverRetry
			continue
		}
		last = time.Now()
		if err := s.spec.Refresh(ctx, hw.Session.Node()); err != nil {
			klog.FromContext(ctx).V(4).Info("The CDI spec is still incomplete", "reason", err.Error())
		}
		retry = s.config.DriverRetry
		if len(s.spec.Problems()) > 0 {
			retry = min(max(time.Since(last), 2*retry), maxSpecRetry)
		}
	}
}

// reportSpec says which GPUs cannot be given to containers, and why, and which can be again.
func (s *service) reportSpec(ctx context.Context) {
	if s.spec.Static == nil {
		return
	}
	troubles := s.spec.Problems()
	reasons := map[string][]string{}
	for _, device := range slices.Sorted(maps.Keys(troubles)) {
		reason := troubles[device].Error()
		if told := s.spec.told[device]; told == nil || told.Error() != reason {
			reasons[reason] = append(reasons[reason], device)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		klog.FromContext(ctx).Error(errors.New(reason), "GPUs cannot be given to containers", "gpus", reasons[reason])
		s.events.warn("DriverIncomplete", strings.Join(reasons[reason], ", ")+": "+reason)
	}
	var back []string
	for _, device := range slices.Sorted(maps.Keys(s.spec.told)) {
		if troubles[device] == nil {
			back = append(back, device)
		}
	}
	if len(back) > 0 {
		klog.FromContext(ctx).Info("GPUs can be given to containers again", "gpus", back)
		s.events.note("DriverComplete", strings.Join(back, ", ")+": device nodes and files of the driver are complete")
	}
	s.spec.told = troubles
}

// taints are those of the devices of GPUs that cannot be given to containers.
func (s *staticSpec) taints(node *policy.Node) []publish.Taint {
	if s.Static == nil {
		return nil
	}
	troubles := s.Problems()
	var taints []publish.Taint
	for i := range node.GPUs {
		if troubles[node.GPUs[i].PCI.DeviceName()] == nil {
			continue
		}
		for _, shape := range node.Shapes(&node.GPUs[i]) {
			taints = append(taints, publish.Taint{Device: shape.Name(), Key: publish.TaintIncomplete})
		}
	}
	return taints
}

// offerGPUs makes the CDI spec and lets claims be prepared. GPUs that lack something are published with a taint, and their
// claims fail and say what is missing, until it is there.
func (s *service) offerGPUs(ctx context.Context, hw *hardware) error {
	if err := s.openSpec(hw.Session); err != nil {
		return err
	}
	err := s.spec.Refresh(ctx, hw.Session.Node())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.reportSpec(ctx)
	s.engine.SetHardware(hw, s.spec.Static)
	s.ready.driver(nil)
	root := s.driverRoot(hw.Session)
	klog.FromContext(ctx).Info("Claims can be prepared", "gpus", len(hw.Node().GPUs), "incomplete", len(s.spec.Problems()),
		"driverVersion", hw.Node().DriverVersion, "driverRoot", root.Host, "cdiSpec", s.spec.Path(), "err", err)
	return nil
}
