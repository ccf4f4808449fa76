// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DecodeStrictly reads opaque parameters of a kind of another API group as strictly as those of this one: unknown fields,
// fields given twice, other kinds, null in lists, and quantities that are none are errors. check is asked after that for what
// is wrong with the values. The error is Problems.
func DecodeStrictly(raw []byte, apiVersion, kind string, into any, check func() field.ErrorList) error {
	if err := decodeKind(raw, apiVersion, kind, into); err != nil {
		return ProblemsOf(err)
	}
	if err := check().ToAggregate(); err != nil {
		return ProblemsOf(err)
	}
	return nil
}

// CheckMemory refuses an amount of memory that is less than 1Mi, or no whole number of bytes; nil is none.
func CheckMemory(path *field.Path, value *resource.Quantity) field.ErrorList {
	return atLeast(path, value)
}
