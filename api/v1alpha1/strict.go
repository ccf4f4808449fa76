// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DecodeStrictly decodes opaque parameters, of this API group or of another: unknown and duplicate fields,
// other kinds, null in lists, and invalid quantities are errors. check then validates the values. The error is Problems.
func DecodeStrictly(raw []byte, apiVersion, kind string, into any, check func() field.ErrorList) error {
	if err := decode(raw, apiVersion, kind, into); err != nil {
		return ProblemsOf(err)
	}
	if err := check().ToAggregate(); err != nil {
		return ProblemsOf(err)
	}
	return nil
}
