// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// Part is one file to import.
type Part struct {
	// Name of the part within a ConfigMap, which is its key; empty for a file.
	Name string
	// File is the name for notes and errors.
	File string
	Data []byte
}

// Parts are those of a file: the keys of a ConfigMap in their order, or the file itself.
func Parts(file string, data []byte) ([]Part, error) {
	whole := []Part{{File: file, Data: data}}
	documents, err := v1alpha1.Documents(data)
	if err != nil || len(documents) != 1 || documents[0].Err != nil {
		return whole, nil //nolint:nilerr // decoding the format says it in its own words
	}
	var object corev1.ConfigMap
	if json.Unmarshal(documents[0].JSON, &object.TypeMeta) != nil || object.APIVersion != "v1" || object.Kind != "ConfigMap" {
		return whole, nil //nolint:nilerr // a file of another kind
	}
	if err := json.Unmarshal(documents[0].JSON, &object); err != nil {
		return nil, fmt.Errorf("%s: read the ConfigMap: %w", file, err)
	}
	if len(object.Data) == 0 {
		return nil, fmt.Errorf("%s: ConfigMap %s has no data", file, object.Name)
	}
	var parts []Part
	for _, key := range slices.Sorted(maps.Keys(object.Data)) {
		parts = append(parts, Part{Name: key, File: file + ", " + key, Data: []byte(object.Data[key])})
	}
	return parts, nil
}
