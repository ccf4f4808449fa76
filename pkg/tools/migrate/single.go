// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// failRequestsGreaterThanOne of the device plugin refuses pods that ask for several shares: they would be of one GPU or of several, as
// it happens. The API server can say so at once.

// SingleShares are the resources of which a container may ask for one only. One that whole GPUs serve on other nodes is left out.
func (i *Import) SingleShares() []string {
	shares := []kind{kindTimeSlice, kindMPS, kindMIGTimeSlice, kindMIGMPS}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(i.single)) {
		c := i.classes[name]
		if c != nil && !slices.ContainsFunc(c.selectors, func(s selector) bool { return !slices.Contains(shares, s.kind) }) {
			names = append(names, name)
		}
	}
	return names
}

// singlePolicy is a ValidatingAdmissionPolicy and its binding.
const singlePolicy = `# failRequestsGreaterThanOne: a container asks for one share of %[1]s.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: cleave-single-shares
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE]
        resources: [pods]
  validations:
    - expression: >-
        (object.spec.containers + object.spec.?initContainers.orValue([])).all(c, [%[2]s].all(r,
        !(r in c.?resources.?limits.orValue({})) || quantity(string(c.resources.limits[r])).compareTo(quantity("1")) <= 0))
      message: "a container may ask for one share of %[1]s: several would be of different GPUs"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: cleave-single-shares
spec:
  policyName: cleave-single-shares
  validationActions: [Deny]
`

// WriteAdmission writes the policy that refuses requests for several shares; nothing where none are to be refused.
func (i *Import) WriteAdmission(w io.Writer) error {
	names := i.SingleShares()
	if len(names) == 0 {
		return nil
	}
	var list []string
	for _, name := range names {
		list = append(list, quoted(name))
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, singlePolicy, strings.Join(names, " or "), strings.Join(list, ", "))
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the ValidatingAdmissionPolicy: %w", err)
	}
	return nil
}
