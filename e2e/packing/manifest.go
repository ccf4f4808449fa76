// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// Objects reads a manifest as strictly as an API server does: a field that does not exist is an error.
func Objects(path string) ([]runtime.Object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var objects []runtime.Object
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("split the manifest %s: %w", path, err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		object, _, err := strict.Decode(doc, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode document %d of %s: %w", len(objects)+1, path, err)
		}
		objects = append(objects, object)
	}
}

// Classes reads all DeviceClasses of a directory of manifests, in order of file names.
func Classes(dir string) ([]*resourceapi.DeviceClass, error) {
	files, err := filepath.Glob(filepath.Join(dir, "deviceclass*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list the manifests in %s: %w", dir, err)
	}
	slices.Sort(files)
	var all []*resourceapi.DeviceClass
	for _, file := range files {
		objects, err := Objects(file)
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
