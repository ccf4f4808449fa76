// SPDX-License-Identifier: Apache-2.0

package claims

import "errors"

// Reasons why Prepare refuses a claim, for metrics: see errors.Is.
var (
	// ErrNoDriver: the node's GPUs cannot be used yet, or not at the moment.
	ErrNoDriver = errors.New("the node's GPUs cannot be used")
	// ErrInvalid: the allocation or its parameters do not match the devices that the node offers.
	ErrInvalid = errors.New("the claim does not fit the node")
	// ErrAllocated: another claim, or an unclaimed partition, blocks the device.
	ErrAllocated = errors.New("the device is not free")
)

// refusal wraps an error with one of the reasons above; the text is that of the error.
type refusal struct {
	error
	why error
}

func (r *refusal) Unwrap() []error { return []error{r.error, r.why} }
