// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/github/go-spdx/v2/spdxexp"
	bom "sigs.k8s.io/bom/pkg/spdx/json/v2.3"
)

// validate reads a bill of materials by other libraries than the one that wrote it: all fields are known to bom, packages have
// unique identifiers and licenses by SPDX's list, and relationships are between elements of the document.
func validate(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var document bom.Document
	if err := decoder.Decode(&document); err != nil {
		return fmt.Errorf("read the bill of materials: %w", err)
	}
	if document.Version != bom.Version || document.Name == "" || !strings.HasPrefix(document.Namespace, "https://") {
		return fmt.Errorf("the bill of materials is %s of %q at %q", document.Version, document.Name, document.Namespace)
	}
	ids := map[string]bool{document.ID: true}
	for _, p := range document.Packages {
		if ids[p.ID] {
			return fmt.Errorf("the bill of materials has %s twice", p.ID)
		}
		ids[p.ID] = true
		for _, license := range []string{p.LicenseConcluded, p.LicenseDeclared} {
			if ok, unknown := spdxexp.ValidateLicenses([]string{license}); !ok {
				return fmt.Errorf("the license of %s in the bill of materials is none of SPDX's: %q", p.ID, unknown)
			}
		}
	}
	described := 0
	for _, r := range document.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			return fmt.Errorf("the bill of materials relates %s to %s, which it does not both have", r.Element, r.Related)
		}
		if r.Element == document.ID {
			described++
		}
	}
	if described == 0 {
		return fmt.Errorf("the bill of materials describes no package")
	}
	return nil
}
