// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Files are those of a node under its root; a node in memory has none.
type Files struct {
	root   string // empty: in memory
	spec   *spec
	opened fileID // of node.json, as it was opened
}

// moveFunction removes a GPU from the sysfs and the /dev of a root, or restores it.
func (f *Files) moveFunction(index int, away bool) error {
	if f.root == "" {
		return nil
	}
	g := &f.spec.GPUs[index]
	from := filepath.Join(f.root, "sys/bus/pci/devices", g.bdf())
	to := filepath.Join(f.root, stateDir, g.bdf()+".away")
	if !away {
		from, to = to, from
	}
	if err := os.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !f.spec.DeviceNodes {
		return nil
	}
	name := fmt.Sprintf("nvidia%d", g.Minor)
	if away {
		return f.RemoveDeviceNodes(name)
	}
	return f.restoreNode(name)
}

// moveProc moves the driver's files under /proc out of the way, or back. It is idempotent.
func (f *Files) moveProc(from, to string) error {
	if f.root == "" {
		return nil
	}
	err := os.Rename(filepath.Join(f.root, from), filepath.Join(f.root, to))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeModules replaces the list of kernel modules.
func (f *Files) writeModules(list string) error {
	if f.root == "" {
		return nil
	}
	file := filepath.Join(f.root, modulesFile)
	spare := file + ".spare"
	if err := os.WriteFile(spare, []byte(list), 0o644); err != nil {
		return err
	}
	return os.Rename(spare, file)
}

// sessionFile is the file that sessions lock while they have a GPU or the driver open.
func (f *Files) sessionFile(slot int) string {
	name := "gpu-" + strconv.Itoa(slot) + ".open"
	if slot == driverSlot {
		name = "driver.open"
	}
	return filepath.Join(f.root, stateDir, name)
}

// holdFile is the file that a process has locked.
func (f *Files) holdFile(pid int) string {
	return filepath.Join(f.root, stateDir, "process-"+strconv.Itoa(pid))
}
