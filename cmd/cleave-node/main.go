// SPDX-License-Identifier: Apache-2.0

// Command cleave-node contains the node components, the kubelet plugin and the MPS supervisor, and the webhook.
package main

import (
	"os"

	"github.com/cleave-dra/cleave/cmd/cleave-node/commands"
	"github.com/cleave-dra/cleave/pkg/cli"
)

func main() {
	os.Exit(cli.Main(commands.New(), os.Args[1:]))
}
