// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"path/filepath"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// Classes reads all DeviceClasses of a directory of manifests, in order of file names.
func Classes(dir string) ([]*resourceapi.DeviceClass, error) {
	files, err := filepath.Glob(filepath.Join(dir, "deviceclass*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list the manifests in %s: %w", dir, err)
	}
	slices.Sort(files)
	var all []*resourceapi.DeviceClass
	for _, file := range files {
		objects, err := workload.Load(file)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			c, ok := o.(*resourceapi.DeviceClass)
			if !ok {
				return nil, fmt.Errorf("read %s: it holds a %T, not only DeviceClasses", file, o)
			}
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no DeviceClass in %s", dir)
	}
	return all, nil
}
