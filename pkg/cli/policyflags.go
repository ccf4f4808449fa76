// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"
)

// policyFlags select the node policy.
type policyFlags struct {
	file   string
	format policy.Format
	name   string
	// active is the plugin's file with this node's active policy, the default if no other is named; empty for none.
	active string
}

// add adds the flags to a command without a node label that selects the policy.
func (f *policyFlags) add(flags *pflag.FlagSet) {
	f.addFile(flags)
	f.addName(flags)
}

// addFile adds the flags for the files of policies.
func (f *policyFlags) addFile(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "policy", "", "file or directory of NodePolicies, which define how GPUs are offered; empty to offer every tier")
	f.addFormat(flags, "policy")
}

// addFormat adds the flag for the format of another flag's files.
func (f *policyFlags) addFormat(flags *pflag.FlagSet, of string) {
	flags.Var((*formatValue)(&f.format), "import-format",
		"format of --"+of+": policy, or NVIDIA's device-plugin or mig-parted; cleave import shows the result")
}

func (f *policyFlags) addName(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "policy-name", "",
		"policy to apply, as the node label "+v1alpha1.PolicyLabel+" would select it; empty for the default")
}

// load reads the files and picks the policy.
func (f *policyFlags) load() (string, *v1alpha1.NodePolicy, error) {
	if f.file == "" && f.name == "" && f.active != "" {
		kept, err := policy.NewActiveStore(store.Disk{}, f.active).Load()
		if err == nil {
			return kept.Name, kept.Policy, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
	policies, err := policy.Load(f.file, f.format)
	if err != nil {
		return "", nil, &usageError{err}
	}
	name, p, err := policies.Select(f.name)
	if err != nil {
		return "", nil, &usageError{err}
	}
	return name, p, nil
}

// formatNodePolicy is what the flag calls files of NodePolicies.
const formatNodePolicy = "policy"

// formatValue is a flag whose value is one of the formats.
type formatValue policy.Format

func (v *formatValue) String() string { return cmp.Or(v.Name, formatNodePolicy) }
func (v *formatValue) Type() string   { return "format" }

func (v *formatValue) Set(text string) error {
	known := []string{formatNodePolicy}
	if text == formatNodePolicy {
		*v = formatValue{}
		return nil
	}
	for _, f := range migrate.Formats() {
		if f.Name == text {
			*v = formatValue(f)
			return nil
		}
		known = append(known, f.Name)
	}
	return fmt.Errorf("it is not one of %s", strings.Join(known, ", "))
}
