// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/validation"
)

// read reads a file of pods, claims and templates. Objects without a namespace get that of the command line, as from kubectl.
func (a *asker) read(path string, stdin io.Reader) error {
	data, err := readInput(stdin, path)
	if err != nil {
		return err
	}
	rules := admission.DefaultRules()
	rules.Driver = a.driver
	if a.file, err = validation.Decode(data, rules); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	for _, c := range a.file.Claims {
		c.Namespace = cmp.Or(c.Namespace, a.namespace)
	}
	for _, t := range a.file.Templates {
		t.Namespace = cmp.Or(t.Namespace, a.namespace)
	}
	for i := range a.file.Pods {
		a.file.Pods[i].Namespace = cmp.Or(a.file.Pods[i].Namespace, a.namespace)
	}
	return nil
}

// isAsked reports whether a question is about an object of the namespace.
func (a *asker) isAsked(namespace string) bool {
	return namespace == a.namespace || a.file != nil &&
		slices.ContainsFunc(a.file.Pods, func(p validation.Pod) bool { return p.Namespace == namespace })
}

func (a *asker) templates(namespace string) []*resourceapi.ResourceClaimTemplate {
	if a.file == nil {
		return nil
	}
	others := func(t *resourceapi.ResourceClaimTemplate) bool { return t.Namespace != namespace }
	return slices.DeleteFunc(slices.Clone(a.file.Templates), others)
}

// explainFile explains a file, and says on stderr which of its objects are passed over.
func (f *explainFlags) explainFile(ctx context.Context, a *asker, stdout, stderr io.Writer) error {
	passed := counted(a.file.PassedOver)
	if len(a.file.Pods)+len(a.file.Claims)+len(a.file.Templates) == 0 {
		if passed == "" && len(a.file.Classes) == 0 {
			return cli.UsageError(fmt.Errorf("%s has no pod, claim or template", f.file))
		}
		if passed != "" {
			passed = ": passed over: " + passed
		}
		fmt.Fprintf(stderr, "cleave: %s: nothing to explain%s\n", f.file, passed)
		if f.format == "json" {
			return cli.PrintJSON(stdout, []*explain.Explanation{})
		}
		return nil
	}
	if passed != "" {
		fmt.Fprintf(stderr, "cleave: %s: passed over: %s\n", f.file, passed)
	}
	return f.explain(ctx, a, stdout)
}

// ofFile asks about the pods of the file, and about its claims and templates that none of them names. What is in the file replaces what
// the cluster has by that name, as if it were applied.
func (a *asker) ofFile(ctx context.Context, o *explain.Objects) (all []*explain.Question, err error) {
	named := map[string]bool{}
	for _, c := range a.file.Classes {
		c.CreationTimestamp = metav1.NewTime(o.Now) // of several classes for a resource the newest counts
		if at := slices.IndexFunc(o.Classes, func(have *resourceapi.DeviceClass) bool { return have.Name == c.Name }); at >= 0 {
			c.CreationTimestamp = o.Classes[at].CreationTimestamp
			o.Classes = slices.Delete(o.Classes, at, at+1)
		}
		o.Classes = append(o.Classes, c)
	}
	for i := range a.file.Pods {
		p := &a.file.Pods[i]
		in, err := a.namespaceOf(ctx, p.Pod.Pod, *o)
		if err != nil {
			return nil, err
		}
		for _, claim := range a.file.Claims {
			if claim.Namespace == p.Namespace && in.Claims[claim.Name] == nil { // one that is there cannot be changed
				in.Claims[claim.Name] = claim
			}
		}
		for _, ref := range p.Spec.ResourceClaims {
			if ref.ResourceClaimName != nil {
				named["claim "+p.Namespace+"/"+*ref.ResourceClaimName] = true
			}
			if ref.ResourceClaimTemplateName != nil {
				named["template "+p.Namespace+"/"+*ref.ResourceClaimTemplateName] = true
			}
		}
		subject := p.Kind + " " + p.Namespace + "/" + p.Name
		if p.Several {
			subject += " (" + p.Path.String() + ")"
		}
		all = append(all, explain.AboutPlanned(subject, p.Pod.Pod, in, *o))
	}
	for _, c := range a.file.Claims {
		if !named["claim "+c.Namespace+"/"+c.Name] {
			all = append(all, explain.AboutClaim(c))
		}
	}
	for _, t := range a.file.Templates {
		if !named["template "+t.Namespace+"/"+t.Name] {
			all = append(all, explain.AboutTemplate(t))
		}
	}
	return all, nil
}
