// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/driver/mps/supervisor"
)

// selfProgram is this program, even after its file was replaced.
const selfProgram = "/proc/self/exe"

func newMPSSupervisor() *cobra.Command {
	config := supervisor.Config{Version: cli.Version}
	service := cli.NewService()
	cmd := &cobra.Command{
		Use:   "mps-supervisor",
		Short: "Run the MPS control daemons of a node",
		Long: "mps-supervisor starts one MPS control daemon per GPU for the first claim that uses it, monitors it, and removes it\n" +
			"after the last claim. The plugin connects to a socket in --dir. Daemons outlive the supervisor if they have their\n" +
			"own cgroup (--daemon-cgroup) and it runs in the host's PID namespace; the next supervisor adopts them.\n\n" +
			cli.EnvironmentHelp + "--start-timeout by START_TIMEOUT.",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.Begin(cmd.Flags(), config.Validate); err != nil {
				return err
			}
			return supervisor.Run(cmd.Context(), config, []string{selfProgram, "mps-supervisor", "run-daemon"})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&config.Dir, "dir", mps.DefaultDir, "directory of the socket, the state and the daemons; the same path on the host")
	cli.AddDriver(flags, &config.DriverRoot, &config.ContainerDriverRoot, &config.NVMLLibrary, "/")
	flags.StringVar(&config.ComputeMode, "compute-mode", supervisor.ExclusiveMode,
		"compute mode of a GPU while it is shared by MPS: exclusive (only the MPS server may use it) or keep (unchanged)")
	flags.StringVar(&config.DaemonCgroup, "daemon-cgroup", "", "directory of the cgroup v2 file system, outside of any pod, "+
		"for daemons that outlive this process's container: /sys/fs/cgroup/cleave-mps; empty for none")
	flags.DurationVar(&config.StartTimeout, "start-timeout", 20*time.Second, "how long a daemon may take to answer")
	flags.DurationVar(&config.StopTimeout, "stop-timeout", 5*time.Second,
		"how long a daemon may take to end: when asked, after SIGTERM, and after SIGKILL")
	service.AddFlags(flags)
	cmd.AddCommand(newRunDaemon(), newMPSStatus())
	return cmd
}

// newRunDaemon is the command that the supervisor starts, which becomes a daemon or its client.
func newRunDaemon() *cobra.Command {
	return &cobra.Command{
		Use:    "run-daemon GPU [ask]",
		Short:  "Become an MPS program for the supervisor",
		Hidden: true,
		Args:   cobra.ArbitraryArgs, // shown in process listings
		RunE:   func(*cobra.Command, []string) error { return supervisor.Enter() },
	}
}

// statusTimeout bounds the wait for the supervisor's status, which it returns at once.
const statusTimeout = 5 * time.Second

func newMPSStatus() *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the daemons of a running supervisor",
		Long:  "status shows the daemons of this node's supervisor. It fails if none answers, so it serves as a readiness probe.",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return cli.UsageError(fmt.Errorf("--output %q is not one of table, json", output))
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
			defer cancel()
			client, err := mps.Dial(filepath.Join(dir, mps.SocketName))
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			status, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if output == "json" {
				return cli.PrintJSON(cmd.OutOrStdout(), status)
			}
			return printMPS(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", mps.DefaultDir, "directory of the supervisor")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// printMPS prints a line per GPU.
func printMPS(to io.Writer, status *mps.Status) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tSTATE\tPID\tGENERATION\tCLAIMS\tMESSAGE")
	for _, g := range status.GPUs {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\n", g.Device, g.State, g.PID, g.Generation, len(g.Claims), g.Message)
	}
	return w.Flush()
}
