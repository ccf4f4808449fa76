// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"os"
	"testing"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/sim/killtest"
)

// TestMain keeps the log out of the results: what it says is not under test. It is also the plugin that is killed.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	killtest.Main(map[string]func(*killtest.Life) error{"plugin": runWorker, "modes": runModeWorker})
	os.Exit(m.Run())
}
