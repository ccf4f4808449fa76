// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// OfClaim is by "namespace/name" of the claim.
func (p *podProcesses) OfClaim(_ context.Context, namespace, name string) ([]int, error) {
	return p.pids[types.UID(namespace+"/"+name)], p.err
}

func (p *endingProcesses) OfClaim(context.Context, string, string) ([]int, error) { return nil, nil }
