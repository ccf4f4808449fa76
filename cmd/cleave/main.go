// SPDX-License-Identifier: Apache-2.0

// Command cleave is the whole of Cleave in one program: the kubelet plugin and the tools around it.
package main

import (
	"os"

	"github.com/cleave-dra/cleave/pkg/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
