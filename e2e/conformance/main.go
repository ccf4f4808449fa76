// SPDX-License-Identifier: Apache-2.0

// Command conformance checks how a DRA driver behaves, from outside: by the kubelet's sockets, the API server and CDI specs.
// It knows no driver in particular.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleave-dra/cleave/e2e/conformance/suite"
)

// Exit codes.
const (
	exitPassed = 0
	exitFailed = 1
	// exitUsage also means that the suite could not run, or could not clean up.
	exitUsage = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, connect)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	suite.Config

	kubeconfig, only, skip      string
	restart, damage, repair     string
	format                      string
	list                        bool
	connect                     func(kubeconfig string) (kubernetes.Interface, error)
	failed                      bool
	commandOutput, reportOutput io.Writer
}

// run is the program. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, connect func(string) (kubernetes.Interface, error)) int {
	o := &options{connect: connect, reportOutput: stdout, commandOutput: stderr}
	c := command(ctx, o)
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	if err := c.Execute(); err != nil {
		fmt.Fprintln(stderr, "conformance:", err)
		return exitUsage
	}
	if o.failed {
		return exitFailed
	}
	return exitPassed
}

func command(ctx context.Context, o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "conformance --driver NAME --node NAME --class NAME",
		Short: "checks how a DRA driver behaves",
		Long: `conformance checks how a DRA driver behaves, by the kubelet's sockets, the API server and CDI specs.

It runs on the driver's node, as root, and creates claims in a namespace of its own. It allocates them as the scheduler
would, to devices that are free, and prepares them in place of the kubelet. Nothing else may allocate devices of the driver
on that node meanwhile: cordon it.

Exit codes: 0 no case failed, 1 some did, 2 the suite could not run or clean up.`,
		Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error { return o.run(ctx) },
	}
	f := c.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"),
		"`file` with an administrator's access; default $KUBECONFIG, else in-cluster")
	f.StringVar(&o.Driver, "driver", "", "`name` of the driver, as in ResourceSlices")
	f.StringVar(&o.Node, "node", "", "`name` of this node")
	f.StringArrayVar(&o.Classes, "class", nil, "`name` of a DeviceClass of the driver; may be repeated, for exclusive and for shared devices")
	f.StringVar(&o.Namespace, "namespace", "dra-conformance", "`name` of the namespace that is created and removed")
	f.StringVar(&o.RegistryDir, "registry-dir", "/var/lib/kubelet/plugins_registry",
		"the kubelet's `directory` of registration sockets; empty if out of reach")
	f.StringVar(&o.Socket, "plugin-socket", "", "the driver's `socket`, in place of the endpoint that it registers")
	f.StringArrayVar(&o.CDIDirs, "cdi-dir", []string{"/etc/cdi", "/var/run/cdi"},
		"`directory` of CDI specs; may be repeated; empty if out of reach")
	f.StringVar(&o.restart, "restart-command", "", "shell `command` that restarts the driver; without it, those cases are skipped")
	f.StringVar(&o.damage, "damage-command", "", "shell `command` that makes device $DRA_DEVICE of pool $DRA_POOL unhealthy")
	f.StringVar(&o.repair, "repair-command", "", "shell `command` that undoes it")
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "`time` that a case may take")
	f.DurationVar(&o.SettleTimeout, "settle-timeout", 10*time.Second,
		"`time` that a driver may take for what it does unasked, such as publishing")
	f.StringVar(&o.only, "run", "", "run the cases that match a regular `expression`")
	f.StringVar(&o.skip, "skip", "", "leave out the cases that match a regular `expression`")
	f.BoolVar(&o.list, "list", false, "list the cases with what Kubernetes says, and run none")
	f.StringVarP(&o.format, "output", "o", "table", "`format`: table or json")
	return c
}

func (o *options) run(ctx context.Context) error {
	if o.list {
		return list(o.reportOutput)
	}
	if err := o.resolve(); err != nil {
		return err
	}
	client, err := o.connect(o.kubeconfig)
	if err != nil {
		return err
	}
	o.Client = client
	if o.format == "table" {
		o.Progress = func(c suite.CaseReport) {
			fmt.Fprintf(o.commandOutput, "%s %s (%.1f s)\n", c.Result, c.Name, c.Seconds)
		}
	}
	report, runErr := suite.Run(ctx, o.Config)
	if report == nil {
		return runErr
	}
	o.failed = report.Failed > 0
	write := report.WriteTable
	if o.format == "json" {
		write = report.WriteJSON
	}
	if err := write(o.reportOutput); err != nil {
		return err
	}
	return runErr
}

// resolve checks the flags.
func (o *options) resolve() error {
	switch {
	case o.Driver == "" || o.Node == "" || len(o.Classes) == 0:
		return errors.New("--driver, --node and --class are needed")
	case o.RegistryDir == "" && o.Socket == "":
		return errors.New("--registry-dir or --plugin-socket is needed")
	case o.format != "table" && o.format != "json":
		return fmt.Errorf("--output %q: want table or json", o.format)
	case (o.damage == "") != (o.repair == ""):
		return errors.New("--damage-command and --repair-command are needed together")
	}
	o.CDIDirs = slices.DeleteFunc(o.CDIDirs, func(dir string) bool { return dir == "" })
	var err error
	if o.only != "" {
		if o.Only, err = regexp.Compile(o.only); err != nil {
			return fmt.Errorf("--run: %w", err)
		}
	}
	if o.skip != "" {
		if o.Skip, err = regexp.Compile(o.skip); err != nil {
			return fmt.Errorf("--skip: %w", err)
		}
	}
	if o.restart != "" {
		o.Restart = func(ctx context.Context) error { return o.shell(ctx, o.restart, "", "") }
	}
	if o.damage != "" {
		o.Damage = func(ctx context.Context, pool, device string) error { return o.shell(ctx, o.damage, pool, device) }
		o.Repair = func(ctx context.Context, pool, device string) error { return o.shell(ctx, o.repair, pool, device) }
	}
	return nil
}

// shell runs a command of a flag.
func (o *options) shell(ctx context.Context, command, pool, device string) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "DRA_DRIVER="+o.Driver, "DRA_NODE="+o.Node, "DRA_POOL="+pool, "DRA_DEVICE="+device)
	cmd.Stdout, cmd.Stderr = o.commandOutput, o.commandOutput
	// A command may leave a driver in the background that keeps the output open.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("run %q: %w", command, err)
	}
	return nil
}

func list(w io.Writer) error {
	for _, c := range suite.Cases() {
		if _, err := fmt.Fprintf(w, "%s\n  %s\n  %s\n", c.Name, c.Rule, c.Source); err != nil {
			return fmt.Errorf("list the cases: %w", err)
		}
	}
	return nil
}

// connect makes a client. The suite is not to wait for a limit of its own.
func connect(kubeconfig string) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent = 100, 200, "dra-conformance"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client: %w", err)
	}
	return client, nil
}
