// SPDX-License-Identifier: Apache-2.0

// Command cleave is the kubelet plugin with its tools.
package main

import (
	"os"

	"github.com/cleave-dra/cleave/pkg/cli"
)

func main() {
	os.Exit(cli.Main(os.Args))
}
