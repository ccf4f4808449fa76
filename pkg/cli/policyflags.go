package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/policy"
)

// policyFlags say which node policy holds.
type policyFlags struct {
	file   string
	format policy.Format
	name   string
}

// add adds the flags to a command that has no node whose label would say which policy it is.
func (f *policyFlags) add(flags *pflag.FlagSet) {
	addPolicyFile(flags, &f.file, &f.format)
	flags.StringVar(&f.name, "policy-name", "", "which of the policies, as the node label "+v1alpha1.PolicyLabel+" would say; empty for the default")
}

// addPolicyFile adds the flags that say where policies are.
func addPolicyFile(flags *pflag.FlagSet, file *string, format *policy.Format) {
	flags.StringVar(file, "policy", "", "file of NodePolicies, or folder of such files; empty to offer every tier")
	*format = policy.FormatPolicy
	flags.Var((*formatValue)(format), "import-format", "what --policy holds: policy, or files of NVIDIA's device-plugin or mig-parted; cleave import shows what comes of them")
}

// load reads the files and picks the policy.
func (f *policyFlags) load() (*v1alpha1.NodePolicy, error) {
	policies, err := policy.Load(f.file, f.format)
	if err != nil {
		return nil, &usageError{err}
	}
	_, p, err := policies.Select(f.name)
	if err != nil {
		return nil, &usageError{err}
	}
	return p, nil
}

// formatValue is a flag that takes one of the formats.
type formatValue policy.Format

func (v *formatValue) String() string { return string(*v) }
func (v *formatValue) Type() string   { return "format" }

func (v *formatValue) Set(text string) error {
	if !slices.Contains(policy.Formats(), policy.Format(text)) {
		var known []string
		for _, f := range policy.Formats() {
			known = append(known, string(f))
		}
		return fmt.Errorf("it is not one of %s", strings.Join(known, ", "))
	}
	*v = formatValue(text)
	return nil
}
