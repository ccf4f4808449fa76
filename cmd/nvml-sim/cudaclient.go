// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim/mps"
)

const cudaClientName = "cuda-client"

// Exit codes of a CUDA program.
const (
	exitOutOfMemory = 2
	exitServerGone  = 3
)

// codeError is an error with the code to exit with.
type codeError struct {
	error
	code int
}

func (e codeError) Unwrap() error { return e.error }

// cudaFlags are the flags of a CUDA program.
type cudaFlags struct {
	memory            string
	device            int
	hold, stay, fault bool
}

func newCUDAClient() *cobra.Command {
	var f cudaFlags
	c := &cobra.Command{
		Use:   cudaClientName + " [--memory SIZE] [--hold]",
		Short: "Act as a CUDA program that uses MPS",
		Long: `Act as a CUDA program that uses MPS, on a node or in a container.

It goes to the daemon in CUDA_MPS_PIPE_DIRECTORY, with its own limits CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and its CUDA_VISIBLE_DEVICES, and prints a line of JSON about what it got.
Exit codes: 0 well, 1 not taken, 2 out of memory, 3 the server is gone or the program ran into an error.`,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return cudaClient(ctx, c, &f)
		},
	}
	c.Flags().StringVar(&f.memory, "memory", "", "`size` of GPU memory to take, such as 512M or 2G")
	c.Flags().IntVar(&f.device, "device", 0, "`ordinal` of the device to use")
	c.Flags().BoolVar(&f.hold, "hold", false, "stay until a signal comes or the server is gone")
	c.Flags().BoolVar(&f.stay, "stay", false, "stay connected after an error too, as programs do that do not look at errors")
	c.Flags().BoolVar(&f.fault, "fault", false, "run into a fatal fault, which hits all clients of the server")
	return c
}

func cudaClient(ctx context.Context, c *cobra.Command, f *cudaFlags) error {
	request := mps.Request{
		PID: os.Getpid(), Command: strings.Join(os.Args, " "), Device: f.device,
		Threads: os.Getenv(mps.EnvThreads), Limits: os.Getenv(mps.EnvMemory),
	}
	if f.memory != "" {
		var err error
		if request.Memory, err = mps.ParseSize(f.memory); err != nil {
			return usageError{err}
		}
	}
	if visible, ok := os.LookupEnv(mps.EnvVisible); ok {
		request.Visible = &visible
	}
	client, err := mps.Connect(ctx, mps.PipeDirectory(), &request)
	if err != nil {
		if e, ok := errors.AsType[*mps.Error](err); ok && e.Name == mps.ErrorOutOfMemory {
			return codeError{err, exitOutOfMemory}
		}
		return err
	}
	defer func() { _ = client.Close() }() // the process ends
	if err := json.NewEncoder(c.OutOrStdout()).Encode(client.Admission); err != nil {
		return err
	}
	if f.fault {
		if err := client.Fault(); err != nil {
			return codeError{err, exitServerGone}
		}
	}
	if !f.hold && !f.stay && !f.fault {
		return nil
	}
	err = client.Wait(ctx)
	if err == nil {
		return nil // a signal
	}
	if f.stay {
		fmt.Fprintln(c.ErrOrStderr(), err)
		client.WaitGone()
	}
	return codeError{err, exitServerGone}
}
