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

// PolicyFlags select the node policy.
type PolicyFlags struct {
	// File is a file or directory, Name that of a policy; empty for the defaults.
	File   string
	Format policy.Format
	Name   string
	// Active is the plugin's file with this node's active policy, the default if no other is named; empty for none.
	Active string
}

// Add adds the flags to a command without a node label that selects the policy.
func (f *PolicyFlags) Add(flags *pflag.FlagSet) {
	f.AddFile(flags)
	f.AddName(flags)
}

// AddFile adds the flags for the files of policies.
func (f *PolicyFlags) AddFile(flags *pflag.FlagSet) {
	flags.StringVar(&f.File, "policy", "", "file or directory of NodePolicies, which define how GPUs are offered; empty to offer every tier")
	f.AddFormat(flags, "policy")
}

// AddFormat adds the flag for the format of another flag's files.
func (f *PolicyFlags) AddFormat(flags *pflag.FlagSet, of string) {
	flags.Var((*formatValue)(&f.Format), "import-format",
		"format of --"+of+": policy, or NVIDIA's device-plugin or mig-parted; cleave import shows the result")
}

// AddName adds the flag that picks a policy of the files.
func (f *PolicyFlags) AddName(flags *pflag.FlagSet) {
	flags.StringVar(&f.Name, "policy-name", "",
		"policy to apply, as the node label "+v1alpha1.PolicyLabel+" would select it; empty for the default")
}

// load reads the files and picks the policy.
func (f *PolicyFlags) load() (string, *v1alpha1.NodePolicy, error) {
	if f.File == "" && f.Name == "" && f.Active != "" {
		kept, err := policy.NewActiveStore(store.Disk{}, f.Active).Load()
		if err == nil {
			return kept.Name, kept.Policy, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
	policies, err := policy.Load(f.File, f.Format)
	if err != nil {
		return "", nil, UsageError(err)
	}
	name, p, err := policies.Select(f.Name)
	if err != nil {
		return "", nil, UsageError(err)
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
