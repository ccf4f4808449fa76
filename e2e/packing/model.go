// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// Inventory is what Cleave finds on a fresh node of a model.
func Inventory(ctx context.Context, model string) (*policy.Node, error) {
	session, err := simulated.Open(ctx, model)
	if err != nil {
		return nil, err
	}
	node := &policy.Node{Node: session.Node()}
	return node, session.Close()
}
