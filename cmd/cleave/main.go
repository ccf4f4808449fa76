// SPDX-License-Identifier: Apache-2.0

// Command cleave is for people: it shows, explains, checks, imports and simulates. As kubectl-cleave it is a plugin of kubectl.
package main

import (
	"os"
	_ "time/tzdata" // --time-zone: the image has no files of zones

	"github.com/cleave-dra/cleave/cmd/cleave/commands"
	"github.com/cleave-dra/cleave/pkg/cli"
)

func main() {
	os.Exit(cli.Main(commands.New(os.Args[0]), os.Args[1:]))
}
