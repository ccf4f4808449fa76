// SPDX-License-Identifier: Apache-2.0

// Command nvidia-cdi-hook sets up driver files inside a container. CDI specs name it, and container runtimes run it on the
// host. It is NVIDIA's hook program of the same toolkit release that writes the specs, without the hooks that Cleave's
// specs do not use.
//
// It is linked statically, because it runs on the host, whose C library may be older or missing. That excludes
// apply-cuda-memory-limits, which loads NVML.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/chmod"
	symlinks "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/create-symlinks"
	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/cudacompat"
	devicenodes "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/disable-device-node-modification"
	profile "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/update-application-profile"
	ldcache "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/update-ldcache"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
)

func main() {
	if err := newCommand().Run(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "nvidia-cdi-hook: %v\n", err)
		os.Exit(1)
	}
}

func newCommand() *cli.Command {
	logger := logrus.New()
	return &cli.Command{
		Name:  "nvidia-cdi-hook",
		Usage: "set up driver files inside a container, as a CDI hook",
		Commands: []*cli.Command{
			ldcache.NewCommand(logger), symlinks.NewCommand(logger), chmod.NewCommand(logger),
			cudacompat.NewCommand(logger), devicenodes.NewCommand(logger), profile.NewCommand(logger),
		},
		// NVIDIA's program warns about an unknown hook, and the container lacks its effect. Here spec and program belong to
		// one release, so an unknown hook is an error.
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Len() == 0 {
				return fmt.Errorf("name a hook: see nvidia-cdi-hook --help")
			}
			return fmt.Errorf("unknown hook %q: the CDI spec was not written by this release", c.Args().First())
		},
	}
}
