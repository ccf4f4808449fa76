// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/store"
)

// policyFlags say which node policy holds.
type policyFlags struct {
	file   string
	format policy.Format
	name   string
	// active is the file in which the plugin keeps the policy of this node, which holds where no other is named; empty for
	// none.
	active string
}

// add adds the flags to a command that has no node whose label would say which policy it is.
func (f *policyFlags) add(flags *pflag.FlagSet) {
	f.addFile(flags)
	f.addName(flags)
}

// addFile adds the flags that say where policies are.
func (f *policyFlags) addFile(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "policy", "", "file of NodePolicies that say what the GPUs are handed out as, or folder of such files; empty to offer every tier")
	f.addFormat(flags, "policy")
}

// addFormat adds the flag that says what the files of another flag hold.
func (f *policyFlags) addFormat(flags *pflag.FlagSet, of string) {
	f.format = policy.FormatPolicy
	flags.Var((*formatValue)(&f.format), "import-format", "what --"+of+" holds: policy, or files of NVIDIA's device-plugin or mig-parted; cleave import shows what comes of them")
}

func (f *policyFlags) addName(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "policy-name", "", "which of the policies, as the node label "+v1alpha1.PolicyLabel+" would say; empty for the default")
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
