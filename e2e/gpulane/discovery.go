// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// discovery is what Cleave finds of the machine.
type discovery struct{ *lane }

// compare compares what Cleave finds with what NVML and nvidia-smi report.
func (l discovery) compare(ctx context.Context) {
	var devices []device
	published := l.check("discovery", "slices", func() (string, error) {
		args := append([]string{"slices", "-o", "json", "--sysfs", sysfs(l.opts.DriverRoot), "--node-name", "gpu-lane"}, l.hardware()...)
		output, err := l.commands.run(ctx, l.cleave(args...))
		if err != nil {
			return "", err
		}
		if devices, err = parseSlices(output); err != nil {
			return "", err
		}
		list, err := compareSlices(devices, l.boards)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d devices of %d GPUs, with NVML's UUIDs, addresses and memory", len(devices), len(l.boards)), differences(list)
	})
	l.check("discovery", "inspect", func() (string, error) { return l.inspect(ctx) })
	l.check("discovery", "nvidia-smi", func() (string, error) { return l.compareWithSMI(ctx) })
	if published {
		l.check("discovery", "partitions", func() (string, error) {
			n, list := comparePlacements(devices, l.boards)
			if n == 0 && len(list) == 0 {
				return "", skipf("no partitions are published: the boards or their modes have none")
			}
			return fmt.Sprintf("%d places of partitions are published, all that NVML knows", n), differences(list)
		})
		l.note("discovery", "model", func() (string, error) { return l.compareWithModel(ctx, devices) })
	}
	l.note("discovery", "memory limits", func() (string, error) {
		c := l.facts["before"].find(l.boards[0].index, "nvmlDeviceGetMemoryLimits_v1", "/sys/fs/cgroup")
		if c == nil {
			return "", skipf("nvml-probe did not ask")
		}
		return fmt.Sprintf("nvmlDeviceGetMemoryLimits_v1 of /sys/fs/cgroup: %s%s", c.Meaning, spaced(c.Value)), nil
	})
	l.collect(ctx)
}

// differences is an error that names the first few.
func differences(list []string) error {
	const most = 5
	switch {
	case len(list) == 0:
		return nil
	case len(list) > most:
		return fmt.Errorf("%s; and %d more", strings.Join(list[:most], "; "), len(list)-most)
	default:
		return errors.New(strings.Join(list, "; "))
	}
}

func (l discovery) inspect(ctx context.Context) (string, error) {
	args := append([]string{"inspect", "-o", "json", "--mps-socket", "", "--sysfs", sysfs(l.opts.DriverRoot)}, l.hardware()...)
	output, err := l.commands.run(ctx, l.cleave(args...))
	if err != nil {
		return "", err
	}
	var seen inspected
	if err := json.Unmarshal(output, &seen); err != nil {
		return "", fmt.Errorf("read what cleave inspect printed: %w", err)
	}
	list := seen.Problems
	for _, b := range l.boards {
		found := false
		for _, g := range seen.GPUs {
			if g.UUID != b.uuid {
				continue
			}
			found = true
			if g.Device != b.pci.DeviceName() {
				list = append(list, fmt.Sprintf("%s is shown as %s", b.pci, g.Device))
			}
			if b.mig && g.MIG != "on" || !b.mig && g.MIG == "on" {
				list = append(list, fmt.Sprintf("the MIG mode of %s is shown as %s", g.Device, g.MIG))
			}
		}
		if !found {
			list = append(list, fmt.Sprintf("%s at %s is not shown", b.uuid, b.pci))
		}
	}
	return fmt.Sprintf("%d GPUs, driver %s", len(seen.GPUs), seen.DriverVersion), differences(list)
}

func (l discovery) compareWithSMI(ctx context.Context) (string, error) {
	if l.machine.SMI == "" {
		return "", skipf("no nvidia-smi under %s", l.opts.DriverRoot)
	}
	output, err := l.commands.run(ctx, driverProgram(l.opts.DriverRoot, l.machine.SMI, smiQuery()...))
	if err != nil {
		return "", skipf("nvidia-smi does not answer: %.120v", err)
	}
	smi, err := parseSMI(output)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d GPUs, with the same UUIDs, addresses and memory", len(smi)), differences(compareSMI(smi, l.boards))
}

// compareWithModel reports how the first GPU differs from the model of it that Cleave is tested with.
func (l discovery) compareWithModel(ctx context.Context, devices []device) (string, error) {
	b := &l.boards[0]
	for _, model := range simulated.NodeModels() {
		output, err := l.commands.quietly(ctx, l.cleave("slices", "-o", "json", "--node-model", model))
		if err != nil {
			return "", err
		}
		modelled, err := parseSlices(output)
		if err != nil {
			return "", err
		}
		for i := range modelled {
			d := &modelled[i]
			if d.text("type") != "gpu" || d.text("productName") != b.name {
				continue
			}
			list := compareShapes(shapes(devices, b.uuid), shapes(modelled, d.text("uuid")))
			l.report.Facts["model"] = map[string]any{"model": model, "differences": list}
			if len(list) == 0 {
				return fmt.Sprintf("the %s is as in the model %s", b.name, model), nil
			}
			return fmt.Sprintf("the %s differs from the model %s in %d devices, such as %s", b.name, model, len(list), list[0]), nil
		}
	}
	return "", skipf("there is no model of a %s", b.name)
}

// collect writes down what nvidia-smi reports of topology, links, partitions and time slices: facts for those who write
// Cleave and have no such machine. None of it changes anything.
func (l discovery) collect(ctx context.Context) {
	if l.machine.SMI == "" {
		return
	}
	for _, args := range [][]string{
		{}, {"-L"}, {"-q"}, {"topo", "-m"}, {"nvlink", "--status"}, {"nvlink", "--capabilities"},
		{"mig", "-lgip"}, {"mig", "-lgipp"}, {"mig", "-lcip"}, {"compute-policy", "--list"},
		{"--query-gpu=index,name,driver_version,pstate,persistence_mode,clocks.applications.graphics," +
			"clocks.applications.memory,power.limit,ecc.mode.current",
			"--format=csv"},
	} {
		_, _ = l.commands.run(ctx, driverProgram(l.opts.DriverRoot, l.machine.SMI, args...)) // the transcript has it, errors too
	}
}
