// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// askPercentage asks for the default active thread percentage, which any daemon that is ready answers.
func askPercentage(ctx context.Context, daemons Daemons, d Daemon) (float64, error) {
	answer, err := daemons.Ask(ctx, d, "get_default_active_thread_percentage")
	if err != nil {
		return 0, err
	}
	percentage, ok := parsePercentage(answer)
	if !ok {
		return 0, fmt.Errorf("the MPS control daemon answered %.200q, not a percentage", answer)
	}
	return percentage, nil
}

// setDefaults sets the limits of clients that set none themselves, and reads them back: the daemon silently accepts nonsense. They
// apply only to the next server, so they precede the first client. GPUs are named by UUID, as their numbers follow
// CUDA_VISIBLE_DEVICES. A partition is the only device that its server sees, so it is number 0: support for its UUID is
// undocumented, and GPU UUIDs were once not supported (NVIDIA/k8s-device-plugin#572).
func setDefaults(ctx context.Context, daemons Daemons, d Daemon, s mps.Settings) error {
	mebibytes, device := s.PinnedMemory>>20, d.UUID
	if isPartition(d.GPU) {
		device = "0"
	}
	var commands []string
	if s.ActiveThreadPercentage > 0 {
		commands = append(commands, fmt.Sprintf("set_default_active_thread_percentage %d", s.ActiveThreadPercentage))
	}
	if mebibytes > 0 {
		commands = append(commands, fmt.Sprintf("set_default_device_pinned_mem_limit %s %dM", device, mebibytes))
	}
	if len(commands) == 0 {
		return nil
	}
	if answer, err := daemons.Ask(ctx, d, commands...); err != nil {
		return fmt.Errorf("set the defaults of MPS clients: %w (%.200q)", err, answer)
	}
	if s.ActiveThreadPercentage > 0 {
		got, err := askPercentage(ctx, daemons, d)
		if err != nil {
			return fmt.Errorf("read the default active thread percentage back: %w", err)
		}
		if math.Abs(got-float64(s.ActiveThreadPercentage)) >= 1 {
			return fmt.Errorf("the default active thread percentage is %g after %d was set", got, s.ActiveThreadPercentage)
		}
	}
	if mebibytes == 0 {
		return nil
	}
	answer, err := daemons.Ask(ctx, d, "get_default_device_pinned_mem_limit "+device)
	if err != nil {
		return fmt.Errorf("read the default memory limit back: %w", err)
	}
	got, unit, ok := parseMemory(answer)
	if !ok { // the format is undocumented
		klog.FromContext(ctx).V(4).Info("The default memory limit that was read back is not understood", "gpu", d.GPU, "answer", answer)
		return nil
	}
	if got > mebibytes || got <= mebibytes-unit {
		return fmt.Errorf("the default memory limit of %s is %q after %dM was set", d.UUID, answer, mebibytes)
	}
	return nil
}

// parsePercentage parses the last non-empty line, such as "100.0".
func parsePercentage(answer string) (float64, bool) {
	lines := strings.Fields(answer)
	if len(lines) == 0 {
		return 0, false
	}
	p, err := strconv.ParseFloat(strings.TrimSuffix(lines[len(lines)-1], "%"), 64)
	return p, err == nil && p >= 0 && p <= 100
}

// memory is an amount with its unit, such as "4G", "4096M" or "4096 MB".
var memory = regexp.MustCompile(`^([0-9]{1,12}) ?([MG])i?B?$`)

// parseMemory parses an amount and its unit, both in MiB.
func parseMemory(answer string) (amount, unit int64, ok bool) {
	parts := memory.FindStringSubmatch(strings.TrimSpace(answer))
	if parts == nil {
		return 0, 0, false
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	unit = 1
	if parts[2] == "G" {
		unit = 1 << 10
	}
	return n * unit, unit, err == nil
}
