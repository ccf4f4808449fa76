// Package v1alpha1 holds the parameters that a claim or a DeviceClass can give to Cleave, as opaque configuration of
// API group gpu.cleave.dev. This release has none yet: whatever is given is refused with an error that says so, since
// a parameter that is quietly passed over is worse than one that is refused.
package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Group and Version of every kind in this package.
const (
	Group   = "gpu.cleave.dev"
	Version = "v1alpha1"
)

// APIVersion is what a parameter's apiVersion field must say.
const APIVersion = Group + "/" + Version

// Check reads one opaque parameter and returns an error that names what is wrong with it, nil if it can be honoured.
func Check(raw []byte) error {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(&meta); err != nil {
		return fmt.Errorf("parameters are not a JSON object with apiVersion and kind: %w", err)
	}
	switch {
	case meta.APIVersion == "" || meta.Kind == "":
		return fmt.Errorf("parameters must set apiVersion and kind, such as apiVersion: %s", APIVersion)
	case meta.APIVersion != APIVersion:
		return fmt.Errorf("unknown apiVersion %q of kind %q: want %s", meta.APIVersion, meta.Kind, APIVersion)
	default:
		return fmt.Errorf("unknown kind %q in %s: this release takes no parameters; remove the opaque configuration", meta.Kind, APIVersion)
	}
}
