// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain keeps the log out of the results: what it says is not under test. It is also the plugin that is killed.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	if args := os.Getenv(envWorker); args != "" {
		if err := runWorker(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if args := os.Getenv(envModeWorker); args != "" {
		if err := runModeWorker(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
