// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestDeviceNodes(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	_, err := Create(root, "hgx-h100")
	if os.Geteuid() != 0 {
		if err == nil || !strings.Contains(err.Error(), "--no-device-nodes") {
			t.Errorf("Create without being root = %v", err)
		}
		t.Skip("device files need root")
	}
	must(t, err)
	info, err := os.Stat(filepath.Join(root, "dev/nvidia5"))
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		t.Fatalf("dev/nvidia5 = %v, %v", info, err)
	}
	d := openNode(t, root).Device(0)
	intoMIG(t, d)
	gi, err := d.MIG().CreateGPUInstanceWithPlacement(19, gpu.Placement{Start: 0, Size: 1})
	must(t, err)
	node := filepath.Join(root, "dev/nvidia-caps/nvidia-cap66")
	if _, err := os.Stat(node); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s came by itself: %v", node, err)
	}
	files := openNode(t, root).Files()
	access := "/proc/driver/nvidia/capabilities/gpu0/mig/gi7/access"
	must(t, errors.Join(files.ModprobeCapability(access), gi.Destroy()))
	if _, err := os.Stat(node); err != nil {
		t.Errorf("the node went with the partition: %v", err)
	}
	for _, file := range []string{access, "/proc/driver/nvidia/capabilities/../gpus", "/etc/passwd"} {
		if err := files.ModprobeCapability(file); err == nil {
			t.Errorf("%s: a node was made", file)
		}
	}
}
