// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// RunTests runs the tests of a package between setUp and tearDown, which also runs when setUp failed or a signal arrived
// in between. It returns the exit status.
func RunTests(m interface{ Run() int }, setUp func(context.Context) error, tearDown func() error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := filepath.Base(os.Args[0])
	code := 1
	if err := setUp(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	} else {
		done := make(chan int, 1)
		go func() { done <- m.Run() }()
		select {
		case code = <-done:
		case <-ctx.Done():
			fmt.Fprintf(os.Stderr, "%s: interrupted; taking the cluster down\n", name)
		}
	}
	if err := tearDown(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		code = 1
	}
	return code
}
