// SPDX-License-Identifier: Apache-2.0

// Command nvml-sim makes simulated GPU nodes and meddles with them. Called as nvidia-smi, nvidia-cuda-mps-control or
// nvidia-cuda-mps-server, it acts as that.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error in how the command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

func main() {
	name := filepath.Base(os.Args[0])
	if err := loadManagementLibrary(name); err != nil {
		os.Exit(exitCode(err))
	}
	switch name {
	case "nvidia-smi":
		os.Exit(exitCode(runSMI(os.Args[1:])))
	case "nvidia-modprobe":
		os.Exit(exitCode(runModprobe(os.Args[1:])))
	}
	if code, ok := asMPS(name, os.Args[1:]); ok {
		os.Exit(code)
	}
	os.Exit(exitCode(newCommand().Execute()))
}

// exitCode reports an error and returns the code to exit with.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
	return codeOf(err)
}

// codeOf is the code to exit with after an error.
func codeOf(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	if e, ok := errors.AsType[codeError](err); ok {
		return e.code
	}
	return exitFailed
}

const long = `nvml-sim makes simulated GPU nodes: a driver root with a libnvidia-ml.so.1 that programs load as NVIDIA's,
stub driver libraries, nvidia-smi, MPS, device files, and stand-ins for /proc and /sys. The state of the GPUs lives
under the root, so every process that uses it sees the same GPUs, and they outlive it.

  nvml-sim create --node hgx-h100 --root /tmp/h100    makes one
  nvml-sim show --root /tmp/h100                      shows it
  nvml-sim fault --root /tmp/h100 --gpu 3 --xid 79    injects faults
  nvml-sim fault --root /tmp/h100 --clear             clears them
  nvml-sim load --root /tmp/h100 --pid 4711 --sm 40   lets a process keep a GPU busy
  nvml-sim burn --root /tmp/h100 --script 'sm 40'     keeps busy what it has device files for, also in a container`

func newCommand() *cobra.Command {
	c := &cobra.Command{
		Use:           "nvml-sim",
		Short:         "Simulated GPU nodes",
		Long:          long,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return c.Help()
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w (see %q)", err, c.CommandPath()+" --help")
	})
	c.CompletionOptions.DisableDefaultCmd = true
	c.AddCommand(newModels(), newCreate(), newRemove(), newShow(), newFault(), newMIG(), newClient(), newLoad(), newBurn(), newHold(),
		newReset(), newReboot(), newDriver(), newNodes(), newMPS(), newCUDAClient())
	return c
}

// noArgs refuses arguments, unknown subcommands among them.
func noArgs(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !c.HasSubCommands():
		return usagef("unknown argument %q of %q (see %q)", args[0], c.CommandPath(), c.CommandPath()+" --help")
	}
	hint := ""
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf(": did you mean %s?", strings.Join(near, " or "))
	}
	return usagef("unknown command %q of %q%s (see %q)", args[0], c.CommandPath(), hint, c.CommandPath()+" --help")
}

// rootFlag adds --root, which names the directory of the node.
func rootFlag(c *cobra.Command, root *string) {
	c.Flags().StringVar(root, "root", os.Getenv("NVML_SIM_ROOT"), "`directory` of the node (default: NVML_SIM_ROOT)")
}

// needRoot refuses to go on without a directory.
func needRoot(root string) error {
	if root == "" {
		return usagef("no --root: say under which directory the node lies")
	}
	return nil
}
