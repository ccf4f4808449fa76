package claims

import (
	"os"
	"testing"

	"k8s.io/klog/v2"
)

// TestMain keeps the log out of the results: what it says is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}
