// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DecodeStrictly decodes opaque parameters of another API group as strictly as those of this one: unknown and duplicate fields,
// other kinds, null in lists, and invalid quantities are errors. check then validates the values. The error is Problems.
func DecodeStrictly(raw []byte, apiVersion, kind string, into any, check func() field.ErrorList) error {
	if err := decodeKind(raw, apiVersion, kind, into); err != nil {
		return ProblemsOf(err)
	}
	if err := check().ToAggregate(); err != nil {
		return ProblemsOf(err)
	}
	return nil
}

// CheckMemory rejects an amount of memory below 1Mi, or that is not a whole number of bytes; nil is valid.
func CheckMemory(path *field.Path, value *resource.Quantity) field.ErrorList {
	return atLeast(path, value)
}
