// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// version is set by the linker.
var version = "unknown"

// Exit codes of every subcommand.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs the program with its name and arguments and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second Ctrl-C ends the program, whatever it still waits for. A container runtime may send SIGTERM again, and has SIGKILL.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	return run(ctx, args, os.Stdout, os.Stderr)
}

// run executes one command line, which begins with the name of the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot() //nolint:contextcheck // cobra passes the context of ExecuteContextC to each RunE
	if strings.HasPrefix(filepath.Base(args[0]), kubectlPrefix) {
		asPlugin(root)
	}
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.CommandPath(), err)
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailed
}

// usageError is an invalid command line, as opposed to a failed command.
type usageError struct {
	err error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Command is the program's command line, for generated documentation.
func Command() *cobra.Command { return newRoot() }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cleave",
		Short: "Kubernetes DRA driver for NVIDIA GPUs",
		Long: "cleave offers the GPUs of a node as devices of Kubernetes Dynamic Resource Allocation, and prepares claims\n" +
			"on the node.\n\n" +
			"Exit codes: 0 ok, 1 failed, 2 usage.",
		Version:                    version,
		SuggestionsMinimumDistance: 2,

		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needSubcommand,
		Args:          cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newKubeletPlugin(), newMPSSupervisor(), newWebhook(), newDashboard(), newInspect(), newExplain(), newSlices(),
		newSimulate(), newValidate(), newImport(), newNVMLProbe())
	return root
}

// needSubcommand is the error of "cleave" and "cleave typo".
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("a subcommand is needed: kubelet-plugin, mps-supervisor, webhook, dashboard, inspect, explain, slices, " +
			"simulate, validate or import")}
	}
	err := fmt.Errorf("unknown subcommand %q", args[0])
	if suggestions := cmd.SuggestionsFor(args[0]); len(suggestions) > 0 {
		err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(suggestions, " or "))
	}
	return &usageError{err}
}

// noArgs rejects arguments with a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// flagsFromEnvironment sets flags that are not on the command line from the environment: --node-name from NODE_NAME. An
// empty variable counts as unset.
func flagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) string) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := environmentName(f.Name)
		if v := lookup(name); !f.Changed && v != "" && f.Name != "help" {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
			}
		}
	})
	if err := errors.Join(errs...); err != nil {
		return &usageError{err}
	}
	return nil
}

func environmentName(flag string) string {
	return strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
