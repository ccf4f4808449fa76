// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"

	resourceapi "k8s.io/api/resource/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Classes are the DeviceClasses that come with Cleave, in the order of the files.
func Classes() ([]*resourceapi.DeviceClass, error) {
	names, err := fs.Glob(Files, "*")
	if err != nil {
		return nil, fmt.Errorf("list the DeviceClasses: %w", err)
	}
	var all []*resourceapi.DeviceClass
	for _, name := range names {
		data, err := Files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the DeviceClasses: %w", err)
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read the DeviceClasses of %s: %w", name, err)
			}
			class := &resourceapi.DeviceClass{}
			if err := yaml.UnmarshalStrict(document, class); err != nil {
				return nil, fmt.Errorf("decode a DeviceClass of %s: %w", name, err)
			}
			if class.Name != "" { // a document of comments alone has none
				all = append(all, class)
			}
		}
	}
	return all, nil
}
