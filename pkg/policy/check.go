package policy

import (
	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/gpu"
)

// Check holds a policy against the boards of a node: profiles that a board has not, layouts that do not fit it,
// partitions asked of a board that cannot be partitioned. A rule that no GPU of the node matches is no error. The error is
// v1alpha1.Problems, each with the rule and field.
func Check(p *v1alpha1.NodePolicy, node *gpu.Node) error {
	return nil
}
