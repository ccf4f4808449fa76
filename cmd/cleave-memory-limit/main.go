// SPDX-License-Identifier: Apache-2.0

// Command cleave-memory-limit makes the driver limit a container's GPU memory. CDI specs of claims name it as a
// createRuntime hook, which container runtimes run on the host once the container's cgroup exists.
//
// NVIDIA's hook (apply-cuda-memory-limits) reads a single amount for all GPUs from the container's environment; a claim's
// shares of several GPUs may differ.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
)

// maxState bounds the container's state that the runtime writes to standard input, in bytes.
const maxState = 1 << 20

func main() {
	if err := run(os.Args[1:], os.Stdin, "/", nvml.LimitMemory); err != nil {
		fmt.Fprintf(os.Stderr, "cleave-memory-limit: %v\n", err)
		os.Exit(1)
	}
}

// limiter is nvml.LimitMemory.
type limiter func(opts nvml.Options, of nvml.LimitedGPU, cgroup string, limit uint64) error

const usage = "use --driver-root DIR --gpu UUID --pci ADDRESS --limit BYTES, with the container's state on standard input"

func run(args []string, stdin io.Reader, root string, limit limiter) error {
	flags := flag.NewFlagSet("cleave-memory-limit", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	driverRoot := flags.String("driver-root", "/", "root of the driver's files on the host")
	uuid := flags.String("gpu", "", "UUID of the GPU")
	address := flags.String("pci", "", "PCI address of the GPU, such as 0000:1b:00.0")
	amount := flags.Uint64("limit", 0, "limit in bytes")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%w: %s", err, usage)
	}
	if *uuid == "" || *amount == 0 || flags.NArg() > 0 {
		return errors.New(usage)
	}
	pci, err := gpu.ParsePCIAddress(*address)
	if err != nil {
		return fmt.Errorf("--pci: %w", err)
	}
	pid, err := containerPID(stdin)
	if err != nil {
		return fmt.Errorf("read the container's state: %w", err)
	}
	cgroup, err := cgroupOf(root, pid)
	if err != nil {
		return fmt.Errorf("find the container's cgroup: %w", err)
	}
	of := nvml.LimitedGPU{PCI: pci, UUID: *uuid}
	if err := limit(nvml.Options{DriverRoot: filepath.Clean(*driverRoot)}, of, cgroup, *amount); err != nil {
		return errors.Join(err, noController(root, cgroup))
	}
	return nil
}

// noController is the error if a missing controller keeps the driver from limiting a cgroup on a kernel that limits device memory:
// runc enables every controller for its containers (opencontainers/cgroups, fs2/create.go), other runtimes only those that they
// know.
func noController(root, cgroup string) error {
	has := func(file string) bool {
		_, err := os.Stat(filepath.Join(root, file))
		return !errors.Is(err, fs.ErrNotExist)
	}
	if !has("sys/fs/cgroup/dmem.capacity") || has(filepath.Join(cgroup, "dmem.max")) {
		return nil
	}
	return fmt.Errorf("cgroup %s has no dmem files: the container runtime does not enable the kernel's controller dmem for it, as runc does",
		cgroup)
}

// containerPID reads the process ID from the state of a container (OCI runtime specification, "State").
func containerPID(from io.Reader) (int, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxState+1))
	if err != nil {
		return 0, err
	}
	if len(data) > maxState {
		return 0, fmt.Errorf("more than %d bytes", maxState)
	}
	var state struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return 0, err
	}
	if state.PID <= 0 {
		return 0, errors.New("it has no pid")
	}
	return state.PID, nil
}

// cgroupOf returns the directory of a process's cgroup in the unified hierarchy.
func cgroupOf(root string, pid int) (string, error) {
	if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err != nil {
		return "", fmt.Errorf("the host has no cgroup v2: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(data) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::"); ok {
			if path = filepath.Clean("/" + path); path == "/" {
				return "", errors.New("the container has no cgroup of its own")
			}
			return filepath.Join("/sys/fs/cgroup", path), nil
		}
	}
	return "", errors.New("the host has no cgroup v2")
}
