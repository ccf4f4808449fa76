// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	cleavecdi "github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// injection is what containers get of the machine.
type injection struct{ *lane }

// try creates the node's CDI spec as cleave-node kubelet-plugin does, in a directory that no runtime reads, and looks whether a
// runtime could use it.
func (l injection) try(ctx context.Context) {
	var static *cleavecdi.Static
	if !l.check("cdi", "write", func() (detail string, err error) {
		static, err = l.static()
		if err != nil {
			return "", err
		}
		return l.writeSpec(ctx, static)
	}) {
		return
	}
	var spec *specs.Spec
	if l.check("cdi", "resolve", func() (detail string, err error) {
		spec, detail, err = l.resolve(static)
		return detail, err
	}) {
		l.check("cdi", "files", func() (string, error) { return checkFiles(spec, l.opts.DriverRoot) })
	}
	data, err := os.ReadFile(static.Path())
	if err == nil {
		err = os.WriteFile(l.out("cdi.json"), data, 0o644)
	}
	if err != nil {
		fmt.Fprintf(l.commands, "keep the CDI spec: %v\n", err)
	}
}

// static is where specs are written.
func (l injection) static() (*cleavecdi.Static, error) {
	return cleavecdi.NewStatic(cleavecdi.Options{
		Driver: v1alpha1.Group, Dir: l.path("cdi"), DriverRoot: l.opts.DriverRoot, ContainerDriverRoot: l.opts.DriverRoot,
		Procfs: os.DirFS(procfs(l.opts.DriverRoot)), HookPath: l.path("hooks/" + hook.NVIDIA),
		MemoryHookPath: l.path("hooks/" + hook.MemoryLimit),
	})
}

func (l injection) writeSpec(ctx context.Context, static *cleavecdi.Static) (_ string, err error) {
	for _, name := range []string{hook.NVIDIA, hook.MemoryLimit} {
		if _, err := hook.Install(l.path("hooks"), name); err != nil {
			return "", err
		}
	}
	// Runtimes run it on the host at each start of a container.
	if _, err := l.commands.run(ctx, exec.Command(l.path("hooks/"+hook.NVIDIA), "--help")); err != nil { //nolint:noctx // run bounds it
		return "", fmt.Errorf("the hook does not run on this machine: %w", err)
	}
	opts := nvml.Options{DriverRoot: l.opts.DriverRoot, Sysfs: os.DirFS(sysfs(l.opts.DriverRoot)).(fs.ReadLinkFS)}
	if l.machine.Stray {
		opts.LibraryPath = l.machine.NVML
	}
	session, err := nvml.Open(ctx, opts)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	l.node = session.Node()
	err = static.Refresh(ctx, l.node)
	if err != nil && l.machine.Stray {
		return "", skipf("the driver's files lie in %s, where no node has them: ldconfig -X %[1]s makes them known (%v)",
			filepath.Dir(l.machine.NVML), err)
	}
	return fmt.Sprintf("%s for %d GPUs", filepath.Base(static.Path()), len(l.node.GPUs)), err
}

// resolve reads the spec as a runtime does and injects every GPU into an empty container.
func (l injection) resolve(static *cleavecdi.Static) (*specs.Spec, string, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Dir(static.Path())), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, "", fmt.Errorf("read the CDI directory: %w", err)
	}
	for path, errs := range cache.GetErrors() {
		return nil, "", fmt.Errorf("read %s: %w", path, errors.Join(errs...))
	}
	var device *cdi.Device
	for i := range l.node.GPUs {
		id := static.DeviceID(l.node.GPUs[i].PCI.DeviceName())
		if device = cache.GetDevice(id); device == nil {
			return nil, "", fmt.Errorf("the spec has no %s", id)
		}
		if err := inject(cache.InjectDevices, id); err != nil {
			return nil, "", fmt.Errorf("give %s to a container: %w", id, err)
		}
	}
	// A GPU has one device as a whole, and may have one for its partitions.
	whole := slices.DeleteFunc(cache.ListDevices(), func(id string) bool { return strings.HasSuffix(id, "-mig") })
	if len(whole) != len(l.boards) {
		return nil, "", fmt.Errorf("the spec has %d devices, NVML %d GPUs", len(whole), len(l.boards))
	}
	spec := device.GetSpec().Spec
	return spec, fmt.Sprintf("version %s, %d devices, each can be given to a container", spec.Version, len(spec.Devices)), nil
}

// inject hands an empty container to the cache; its type is that of the runtime's specification.
func inject[T any](into func(*T, ...string) ([]string, error), id string) error {
	_, err := into(new(T), id)
	return err
}

// checkFiles looks whether everything is there that a spec names, and whether it names what every CUDA program needs.
func checkFiles(spec *specs.Spec, root string) (string, error) {
	edits := []specs.ContainerEdits{spec.ContainerEdits}
	for _, d := range spec.Devices {
		edits = append(edits, d.ContainerEdits)
	}
	var missing []string
	need := func(path string) {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, err.Error())
		}
	}
	var inside []string
	nodes, mounts, hooks := 0, 0, 0
	for _, e := range edits {
		for _, n := range e.DeviceNodes {
			host := n.HostPath
			if host == "" {
				host = n.Path
			}
			need(host)
			nodes, inside = nodes+1, append(inside, filepath.Base(n.Path))
		}
		for _, m := range e.Mounts {
			need(m.HostPath)
			mounts, inside = mounts+1, append(inside, filepath.Base(m.HostPath))
		}
		for _, h := range e.Hooks {
			need(h.Path)
			hooks++
		}
	}
	if !slices.ContainsFunc(inside, func(s string) bool { return strings.HasPrefix(s, "libcuda.so.") }) {
		missing = append(missing, "a container would have no libcuda")
	}
	for _, node := range []string{"nvidiactl", "nvidia-uvm"} {
		if _, err := os.Stat(filepath.Join(root, "dev", node)); err != nil {
			missing = append(missing, fmt.Sprintf("/dev/%s is not there: nvidia-modprobe -u -c 0 makes it", node))
		} else if !slices.Contains(inside, node) {
			missing = append(missing, "a container would have no /dev/"+node)
		}
	}
	return fmt.Sprintf("%d device nodes, %d mounts and %d hooks are there", nodes, mounts, hooks), differences(missing)
}
