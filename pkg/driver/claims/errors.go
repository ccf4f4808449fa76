// SPDX-License-Identifier: Apache-2.0

package claims

import "errors"

// Why Prepare refuses a claim, for those who count: see errors.Is.
var (
	// ErrNoDriver: the node's GPUs cannot be used yet, or at present.
	ErrNoDriver = errors.New("the node's GPUs cannot be used")
	// ErrInvalid: the allocation or its parameters do not fit what the node offers.
	ErrInvalid = errors.New("the claim does not fit the node")
	// ErrAllocated: another claim, or a partition that no claim has, is in the way.
	ErrAllocated = errors.New("the device is not free")
)

// refusal is an error that is one of those above, too. Its text is the error's.
type refusal struct {
	error
	why error
}

func (r *refusal) Unwrap() []error { return []error{r.error, r.why} }
