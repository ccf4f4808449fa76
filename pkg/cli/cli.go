// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// Version is set by the linker.
var Version = "unknown"

// Exit codes of every subcommand.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
	// ExitWaits is for what cleave explain finds to fit, and yet to wait.
	ExitWaits = 3
)

// Main runs a program with its arguments, without its name, and returns the exit code.
func Main(root *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The second Ctrl-C ends the program immediately. A container runtime may send SIGTERM again, and has SIGKILL.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt) })
	return Run(ctx, root, args, os.Stdout, os.Stderr)
}

// Run executes one command line and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.CommandPath(), err)
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return ExitUsage
	}
	if coded := (*codedError)(nil); errors.As(err, &coded) {
		return coded.code
	}
	return ExitFailed
}

// codedError is the error of a command with an exit code of its own.
type codedError struct {
	error
	code int
}

// WithCode has the program exit with a code.
func WithCode(err error, code int) error { return &codedError{err, code} }

// usageError is an invalid command line, as opposed to a failed command.
type usageError struct {
	err error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// UsageError marks an error as one of the command line, so that the program exits with ExitUsage.
func UsageError(err error) error { return &usageError{err} }

// ExitCodes are those that every program has, as help and docs name them.
const ExitCodes = "0 ok, 1 failed, 2 usage"

// NewRoot returns the root command of a program with its subcommands. long describes it; the exit codes are added.
func NewRoot(name, short, long, exitCodes string, subcommands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:                        name,
		Short:                      short,
		Long:                       long + "\n\nExit codes: " + exitCodes + ".",
		Version:                    Version,
		SuggestionsMinimumDistance: 2,

		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          needSubcommand,
		Args:          cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError(err) })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(subcommands...)
	root.AddCommand(newVersion(name))
	return root
}

func newVersion(name string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", name, Version)
			return err
		},
	}
}

// needSubcommand is the error of "cleave" and "cleave typo".
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		var names []string
		for _, c := range cmd.Commands() {
			if !c.Hidden && c.Name() != "help" {
				names = append(names, c.Name())
			}
		}
		return UsageError(fmt.Errorf("a subcommand is needed: %s", strings.Join(names, ", ")))
	}
	err := fmt.Errorf("unknown subcommand %q", args[0])
	if suggestions := cmd.SuggestionsFor(args[0]); len(suggestions) > 0 {
		err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(suggestions, " or "))
	}
	return UsageError(err)
}

// NoArgs rejects arguments with a usage error.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UsageError(fmt.Errorf("unexpected argument %q", args[0]))
	}
	return nil
}

// FlagsFromEnvironment sets flags that are not on the command line from the environment: --node-name from NODE_NAME. An
// empty variable counts as unset.
func FlagsFromEnvironment(flags *pflag.FlagSet, lookup func(string) string) error {
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
		return UsageError(err)
	}
	return nil
}

func environmentName(flag string) string {
	return strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// PrintAs writes a value as JSON or, with the format yaml, as YAML with the same fields.
func PrintAs(w io.Writer, format string, v any) error {
	if format != "yaml" {
		return PrintJSON(w, v)
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if _, err = w.Write(data); err != nil {
		return fmt.Errorf("print the output: %w", err)
	}
	return nil
}

// PrintJSON writes a value as JSON.
func PrintJSON(w io.Writer, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the output: %w", err)
	}
	if _, err = fmt.Fprintln(w, string(data)); err != nil {
		return fmt.Errorf("print the output: %w", err)
	}
	return nil
}
