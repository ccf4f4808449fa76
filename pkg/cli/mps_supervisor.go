// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/mps/supervisor"
)

// selfProgram is this very program, also after its file was replaced.
const selfProgram = "/proc/self/exe"

func newMPSSupervisor() *cobra.Command {
	config := supervisor.Config{Version: version}
	service := newService()
	cmd := &cobra.Command{
		Use:   "mps-supervisor",
		Short: "Run the MPS control daemons of a node",
		Long: "mps-supervisor starts one MPS control daemon per GPU when the first claim uses it, watches it, and takes all of it\n" +
			"away after the last claim. The plugin talks to it over a socket in --dir. Daemons outlive it where they have a\n" +
			"cgroup of their own (--daemon-cgroup) and it sees the host's processes; the next one adopts them.\n\n" +
			"Every flag can also be set by the environment variable of its name: --start-timeout by START_TIMEOUT.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := service.begin(cmd.Flags(), config.Validate); err != nil {
				return err
			}
			return supervisor.Run(cmd.Context(), config, []string{selfProgram, "mps-supervisor", "run-daemon"})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&config.Dir, "dir", mps.DefaultDir, "folder of the socket, the state and the daemons; the same path on the host")
	flags.StringVar(&config.DriverRoot, "driver-root", "/", "root of the NVIDIA driver's files on the host; auto for the first of / and /run/nvidia/driver that has a driver")
	flags.StringVar(&config.ContainerDriverRoot, "container-driver-root", "", "where this process sees the driver root, or with --driver-root=auto the host's /; empty if at the same path")
	flags.StringVar(&config.NVMLLibrary, "nvml-library", "", "path of libnvidia-ml.so.1; empty to look under the driver root")
	flags.StringVar(&config.ComputeMode, "compute-mode", supervisor.ExclusiveMode,
		"compute mode of a GPU while it is shared by MPS: exclusive (only the MPS server may use it) or keep (as it is)")
	flags.StringVar(&config.DaemonCgroup, "daemon-cgroup", "",
		"folder of the cgroup v2 file system, outside of any pod, for daemons to outlive this process's container: /sys/fs/cgroup/cleave-mps; empty for none")
	flags.DurationVar(&config.StartTimeout, "start-timeout", 20*time.Second, "how long a daemon may take until it answers")
	flags.DurationVar(&config.StopTimeout, "stop-timeout", 5*time.Second, "how long a daemon may take to end: when asked, after SIGTERM, and after SIGKILL")
	service.addFlags(flags)
	cmd.AddCommand(newRunDaemon(), newMPSStatus())
	return cmd
}

// newRunDaemon is what the supervisor starts its own program as: it becomes a daemon, or its client.
func newRunDaemon() *cobra.Command {
	return &cobra.Command{
		Use:    "run-daemon GPU [ask]",
		Short:  "Become a program of MPS, as the supervisor says",
		Hidden: true,
		Args:   cobra.ArbitraryArgs, // for people who list processes
		RunE:   func(*cobra.Command, []string) error { return supervisor.Enter() },
	}
}

// statusTimeout bounds the wait for the supervisor's status, which it tells at once.
const statusTimeout = 5 * time.Second

func newMPSStatus() *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the daemons of a supervisor that runs",
		Long:  "status asks the supervisor of this node what it has in hand. It fails if none answers, which makes it a readiness probe.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return &usageError{fmt.Errorf("--output %q is not one of table, json", output)}
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
				return printJSON(cmd.OutOrStdout(), status)
			}
			return printMPS(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", mps.DefaultDir, "folder of the supervisor")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

// printMPS is a line per GPU.
func printMPS(to io.Writer, status *mps.Status) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GPU\tSTATE\tPID\tGENERATION\tCLAIMS\tMESSAGE")
	for _, g := range status.GPUs {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\n", g.Device, g.State, g.PID, g.Generation, len(g.Claims), g.Message)
	}
	return w.Flush()
}
