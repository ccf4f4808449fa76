// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// SetDefault makes the policy of a configuration that of nodes without a label, too: a policy of its own, as nodes may have the label.
// Without a name it notes where such nodes are left to the built-in policy.
func (i *Import) SetDefault(name string) error {
	var names []string
	for _, p := range i.Policies {
		names = append(names, p.Metadata.Name)
	}
	has := slices.Contains(names, v1alpha1.DefaultPolicy)
	wanted := v1alpha1.PolicyNameOf(name)
	switch {
	case wanted == v1alpha1.DefaultPolicy && has, name == "" && has:
		return nil
	case name == "":
		i.Notes = append(i.Notes, Note{Instead: fmt.Sprintf("no policy is named %s: nodes without a label offer every tier, by the "+
			"built-in policy. To give them another one, repeat the import with --default and one of %s",
			v1alpha1.DefaultPolicy, strings.Join(names, ", "))})
		return nil
	case has:
		return fmt.Errorf("the default is to be %q, and there is a policy named %s already", name, v1alpha1.DefaultPolicy)
	}
	at := slices.Index(names, wanted)
	if at < 0 {
		return fmt.Errorf("the default is to be %q, and there is no such policy: choose one of %s", name, strings.Join(names, ", "))
	}
	p := *i.Policies[at]
	p.Metadata.Name = v1alpha1.DefaultPolicy
	for _, n := range i.Notes { // they are about both
		if n.policy == wanted {
			n.policy = v1alpha1.DefaultPolicy
			i.copied = append(i.copied, n)
		}
	}
	i.Policies = append(i.Policies, &p)
	slices.SortFunc(i.Policies, func(a, b *v1alpha1.NodePolicy) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	return nil
}
