// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// Options of an import.
type Options struct {
	// File is the file's name for notes; empty to leave it out.
	File string
	// Name of the policy, or for a mig-parted file of the one mig-config that is taken. Empty: "default" for a file of the
	// device plugin, and all mig-configs.
	Name string
	// MIGStrategy is what the device plugin has in place of its file's; empty for the file's. The GPU operator puts that of its
	// ClusterPolicy into the plugin's environment (controllers/object_controls.go, applyMIGConfiguration), which comes first
	// (api/config/v1/flags.go, updateFromCLIFlag).
	MIGStrategy string
	// Driver is the DRA driver's name, by which the DeviceClasses select; empty for v1alpha1.Group.
	Driver string
}

// Import is what came of a file.
type Import struct {
	// Policies in order of their names.
	Policies []*v1alpha1.NodePolicy
	// LeftOut are parts of the file that would be policies but for something that Cleave has not, in order of names.
	LeftOut []policy.LeftOut
	// Notes are what was not taken over as it is, in order of the file.
	Notes []Note

	source  string
	file    string
	policy  string // that notes are about
	driver  string
	classes map[string]*class // by resource
	noted   map[Note]bool
	// single are shared resources of which a container may ask for one.
	single map[string]bool
	// copied are notes about a policy that is there twice.
	copied []Note
}

func newImport(source string, o Options) *Import {
	return &Import{
		source: source, file: o.File, driver: cmp.Or(o.Driver, v1alpha1.Group), classes: map[string]*class{}, noted: map[Note]bool{},
		single: map[string]bool{},
	}
}

// leaveOut notes a policy that could not be made.
func (i *Import) leaveOut(name string, err error) {
	i.LeftOut = append(i.LeftOut, policy.LeftOut{Name: name, Err: err})
}

// Note is a field that has no equivalent, or not quite.
type Note struct {
	// File as Options has it.
	File string
	// Field of the file, such as flags.failOnInitError, and its value there.
	Field, Value string
	// Instead says what holds in its place, or what to use.
	Instead string
	// policy that the note is about, or would be; empty for all.
	policy string
}

// String is the note as one line.
func (n Note) String() string {
	var parts []string
	for _, part := range []string{n.File, n.Field, n.Value, n.Instead} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return printable(strings.Join(parts, ": "))
}

// Classes are the DeviceClasses that serve the resources that pods ask for today, in order of the resources' names.
func (i *Import) Classes() []*resourceapi.DeviceClass {
	var objects []*resourceapi.DeviceClass
	for _, c := range i.sorted() {
		objects = append(objects, c.object(i.source, i.driver))
	}
	return objects
}

// Add takes up what came of another file of the same format. Its policies need names of their own; resources of the same
// name are then served by what either file offers by that name.
func (i *Import) Add(other *Import) error {
	var problems v1alpha1.Problems
	for _, p := range other.Policies {
		if slices.ContainsFunc(i.Policies, func(q *v1alpha1.NodePolicy) bool { return q.Metadata.Name == p.Metadata.Name }) {
			problems = append(problems, fmt.Errorf("another file has a policy %q, too: name each its own", p.Metadata.Name))
		}
	}
	if len(problems) > 0 {
		return problems
	}
	i.Policies = append(i.Policies, other.Policies...)
	slices.SortFunc(i.Policies, func(a, b *v1alpha1.NodePolicy) int { return cmp.Compare(a.Metadata.Name, b.Metadata.Name) })
	i.LeftOut = append(i.LeftOut, other.LeftOut...)
	i.Notes = append(i.Notes, other.Notes...)
	maps.Copy(i.single, other.single)
	for _, c := range other.sorted() {
		for _, s := range c.selectors {
			i.serve(c.resource, c.why, s)
		}
	}
	return nil
}

// finish checks the policies as any other file's are.
func (i *Import) finish() error {
	var problems v1alpha1.Problems
	for _, p := range i.Policies {
		if err := p.Validate(); err != nil {
			problems = append(problems, v1alpha1.ProblemsOf(fmt.Errorf("policy %q: %w", p.Metadata.Name, err))...)
		}
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// note adds a note; value is as the file has it.
func (i *Import) note(field string, value any, instead string, args ...any) {
	n := Note{File: i.file, Field: field, Value: shown(value), Instead: fmt.Sprintf(instead, args...), policy: i.policy}
	if !i.noted[n] {
		i.noted[n] = true
		i.Notes = append(i.Notes, n)
	}
}

// newPolicy is a policy without rules.
func newPolicy(name string) *v1alpha1.NodePolicy {
	p := &v1alpha1.NodePolicy{Metadata: v1alpha1.PolicyMetadata{Name: name}}
	p.APIVersion, p.Kind = v1alpha1.APIVersion, v1alpha1.NodePolicyKind
	return p
}

// addRule adds a rule to a policy, unless those before it leave it no GPU.
func addRule(p *v1alpha1.NodePolicy, r v1alpha1.Rule) (added bool) {
	// The policy's own validation knows which rules never hold.
	with := *p
	with.Rules = append(slices.Clone(p.Rules), r)
	alone := *p
	alone.Rules = []v1alpha1.Rule{r}
	if p.Validate() == nil && alone.Validate() == nil && with.Validate() != nil && len(with.Rules) <= v1alpha1.MaxRules {
		return false
	}
	p.Rules = with.Rules
	return true
}

// errEmpty is of a file that says nothing.
var errEmpty = errors.New("the file is empty")
