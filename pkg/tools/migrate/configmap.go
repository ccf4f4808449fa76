// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Parts are what a file holds for an import.
type Parts struct {
	Parts []Part
	// PassedOver are its other objects and keys, each with what it is.
	PassedOver []string
	// Defaults are the configurations that nodes without a label have, by format, as a ClusterPolicy of the GPU operator names them.
	Defaults map[string]string
	// MIGStrategy of the device plugin, as a ClusterPolicy sets it.
	MIGStrategy string
}

// object is what an import reads of a Kubernetes object.
type object struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Data            map[string]string `json:"data"`
	Items           []json.RawMessage `json:"items"`
	Spec            struct {
		DevicePlugin component `json:"devicePlugin"`
		MIGManager   component `json:"migManager"`
		MIG          struct {
			Strategy string `json:"strategy"`
		} `json:"mig"`
	} `json:"spec"`
}

// component is a part of the GPU operator (api/nvidia/v1/clusterpolicy_types.go).
type component struct {
	Config struct {
		Default string `json:"default"`
	} `json:"config"`
}

// PartsOf finds what a file holds of a format: the keys of its ConfigMaps in their order, or the file itself. Other objects, such as
// the ClusterPolicy that kubectl or a repository has beside them, are passed over.
func PartsOf(file, format string, data []byte) (*Parts, error) {
	p := &Parts{Defaults: map[string]string{}}
	whole := &Parts{Parts: []Part{{File: file, Data: data}}}
	documents, err := v1alpha1.Documents(data)
	if err != nil {
		return whole, nil //nolint:nilerr // decoding the format says it in its own words
	}
	plain := 0
	for _, d := range documents {
		if o := objectOf(d.JSON); d.Err == nil && o != nil {
			if err := p.add(file, format, o, d.JSON); err != nil {
				return nil, err
			}
			continue
		}
		plain++
		p.Parts = append(p.Parts, Part{File: file, Data: d.JSON})
	}
	switch {
	case plain > 1 || plain == len(documents):
		return whole, nil
	case len(p.Parts) == 0:
		return nil, fmt.Errorf("%s: only a ConfigMap can be imported: passed over: %s", file, strings.Join(p.PassedOver, ", "))
	}
	return p, nil
}

// objectOf is nil for what is no Kubernetes object.
func objectOf(raw []byte) *object {
	o := &object{}
	if json.Unmarshal(raw, &o.TypeMeta) != nil || o.APIVersion == "" || o.Kind == "" {
		return nil
	}
	return o
}

// add takes up an object.
func (p *Parts) add(file, format string, o *object, raw []byte) error {
	name := o.Kind
	err := json.Unmarshal(raw, o)
	if o.Metadata.Name != "" {
		name += " " + o.Metadata.Name
	}
	switch {
	case o.APIVersion == "v1" && (o.Kind == "ConfigMap" || o.Kind == "List") && err != nil:
		return fmt.Errorf("%s: read the %s: %w", file, o.Kind, err)
	case o.APIVersion == "v1" && o.Kind == "List":
		for _, raw := range o.Items {
			item := objectOf(raw)
			if item == nil || item.Kind == "List" {
				return fmt.Errorf("%s: read the List: an item is no object", file)
			}
			if err := p.add(file, format, item, raw); err != nil {
				return err
			}
		}
	case o.APIVersion == "v1" && o.Kind == "ConfigMap":
		return p.keys(file, format, o)
	case o.Kind == "ClusterPolicy":
		p.Defaults["device-plugin"], p.Defaults["mig-parted"] = o.Spec.DevicePlugin.Config.Default, o.Spec.MIGManager.Config.Default
		p.MIGStrategy = o.Spec.MIG.Strategy
		fallthrough
	default:
		p.PassedOver = append(p.PassedOver, printable(name))
	}
	return nil
}

// keys takes up those of a ConfigMap that are of the format; where none is, all of them, as their errors say why.
func (p *Parts) keys(file, format string, o *object) error {
	if len(o.Data) == 0 {
		return fmt.Errorf("%s: ConfigMap %s has no data", file, o.Metadata.Name)
	}
	keys := slices.Sorted(maps.Keys(o.Data))
	others := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return isOf(format, o.Data[key]) })
	if len(others) == len(keys) {
		others = nil
	}
	for _, key := range keys {
		if slices.Contains(others, key) {
			p.PassedOver = append(p.PassedOver, printable("key "+key+" of ConfigMap "+o.Metadata.Name))
			continue
		}
		text := o.Data[key]
		if format == "device-plugin" && strings.TrimSpace(text) == "" {
			text = "version: v1" // the plugin's defaults, which an empty key gives; an empty file is a mistake
		}
		p.Parts = append(p.Parts, Part{Name: key, File: file + ", " + key, Data: []byte(text)})
	}
	return nil
}

// isOf reports whether a text was meant for a file of a format: by one of its fields, or for being empty, which the device plugin takes.
func isOf(format, text string) bool {
	fields := map[string][]string{
		"device-plugin": {"version", "flags", "resources", "sharing", "imex"}, "mig-parted": {"mig-configs"},
	}[format]
	documents, err := v1alpha1.Documents([]byte(text))
	if err != nil || len(documents) == 0 {
		return err == nil && format == "device-plugin"
	}
	var found map[string]any
	if documents[0].Err != nil || json.Unmarshal(documents[0].JSON, &found) != nil {
		return false
	}
	return slices.ContainsFunc(fields, func(name string) bool { _, has := found[name]; return has })
}
