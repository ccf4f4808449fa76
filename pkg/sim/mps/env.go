// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Names of the environment that NVIDIA's MPS knows.
const (
	EnvPipeDirectory = "CUDA_MPS_PIPE_DIRECTORY"
	EnvLogDirectory  = "CUDA_MPS_LOG_DIRECTORY"
	EnvThreads       = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	EnvMemory        = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	EnvVisible       = "CUDA_VISIBLE_DEVICES"
)

// PipeDirectory is the daemon's directory according to the environment.
func PipeDirectory() string { return cmp.Or(os.Getenv(EnvPipeDirectory), "/tmp/nvidia-mps") }

// LogDirectory is the directory of logs according to the environment.
func LogDirectory() string { return cmp.Or(os.Getenv(EnvLogDirectory), "/var/log/nvidia-mps") }

// parsePercentage reads a share of the threads of a GPU, above 0 and at most 100.
func parsePercentage(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v <= 0 || v > 100 {
		return 0, fmt.Errorf("invalid percentage %q: want a number above 0, at most 100", s)
	}
	return v, nil
}

// formatPercentage formats it like the daemon: "25.0".
func formatPercentage(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// ParseSize reads an amount of memory: "2G" or "512M".
func ParseSize(s string) (uint64, error) {
	shift := 0
	number, ok := strings.CutSuffix(s, "G")
	if ok {
		shift = 30
	} else if number, ok = strings.CutSuffix(s, "M"); ok {
		shift = 20
	}
	v, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || v == 0 || v > math.MaxUint64>>shift {
		return 0, fmt.Errorf("invalid amount of memory %q: want an integer and G or M", s)
	}
	return v << shift, nil
}

// formatSize formats an amount of memory in the largest exact unit.
func formatSize(v uint64) string {
	if v != 0 && v%(1<<30) == 0 {
		return strconv.FormatUint(v>>30, 10) + "G"
	}
	return strconv.FormatUint(v>>20, 10) + "M"
}

// deviceLimit is a memory limit as set, for a device that may not exist.
type deviceLimit struct {
	Device string `json:"device"` // an ordinal or a UUID
	Bytes  uint64 `json:"bytes"`
}

// parseLimits reads CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: "0=1G,GPU-…=512M".
func parseLimits(s string) ([]deviceLimit, error) {
	var limits []deviceLimit
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		device, size, ok := strings.Cut(part, "=")
		if !ok || device == "" {
			return nil, fmt.Errorf("invalid memory limit %q: want DEVICE=SIZE", part)
		}
		bytes, err := ParseSize(size)
		if err != nil {
			return nil, err
		}
		limits = append(limits, deviceLimit{device, bytes})
	}
	return limits, nil
}

// settings are the limits of a server's programs.
type settings struct {
	Threads float64       `json:"threads"`
	Limits  []deviceLimit `json:"limits,omitempty"` // in the order in which they were set
}

// set replaces the limit of a device, and makes it the latest.
func (s *settings) set(l deviceLimit) {
	// A new slice: a server that is being started has the old one.
	limits := slices.DeleteFunc(slices.Clone(s.Limits), func(old deviceLimit) bool { return old.Device == l.Device })
	limits = append(limits, l)
	s.Limits = limits
}

// get returns the limit that was set for exactly that name of a device; 0 for none.
func (s *settings) get(device string) uint64 {
	for _, l := range s.Limits {
		if l.Device == device {
			return l.Bytes
		}
	}
	return 0
}

// settingsOf are the defaults of a daemon with that environment.
func settingsOf(threads, limits string) (settings, error) {
	s := settings{Threads: 100}
	var err error
	if threads != "" {
		if s.Threads, err = parsePercentage(threads); err != nil {
			return s, fmt.Errorf("read %s: %w", EnvThreads, err)
		}
	}
	if s.Limits, err = parseLimits(limits); err != nil {
		return s, fmt.Errorf("read %s: %w", EnvMemory, err)
	}
	return s, nil
}
