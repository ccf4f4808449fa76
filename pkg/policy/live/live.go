// SPDX-License-Identifier: Apache-2.0

// Package live tells which policy a node's GPUs are handed out by, while files and the node's label change: one that cannot
// be used never takes the place of one that can.
package live

import (
	"fmt"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// InForce is the policy that GPUs are handed out by.
type InForce struct {
	// Name by which the node's label picks it, or policy.BuiltIn.
	Name   string
	Policy *v1alpha1.NodePolicy
}

// Decide picks the policy that is in force from now on: the one that the label names, or was where that one cannot be used.
// The error then says why. It is pure.
//
// set and loadErr are the answer of policy.Load; both may be given, as a file that is wrong is no trouble of a node whose
// policy is in another. was is nil where none was in force, and then the answer is nil until there is one that can be used.
func Decide(was *InForce, set *policy.Set, loadErr error, label string, check func(*v1alpha1.NodePolicy) error) (*InForce, error) {
	if set == nil {
		return was, loadErr
	}
	name, p, err := set.Select(label)
	if err != nil {
		return was, err
	}
	if err := check(p); err != nil {
		return was, fmt.Errorf("policy %q does not fit this node: %w", name, err)
	}
	return &InForce{Name: name, Policy: p}, nil
}
