// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// WritePolicy writes one of the policies as YAML.
func (i *Import) WritePolicy(w io.Writer, p *v1alpha1.NodePolicy) error {
	data, err := yaml.Marshal(p)
	if err == nil {
		_, err = w.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write policy %s: %w", p.Metadata.Name, err)
	}
	return nil
}

// classText is a DeviceClass with a comment in front. What fills it in has been checked, but for the expression.
const classText = `# %s: %s
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: %s
spec:
  extendedResourceName: %[1]s
  selectors:
    - cel:
        expression: '%[4]s'
`

// WriteClasses writes the DeviceClasses as YAML documents, each with what it offers as a comment.
func (i *Import) WriteClasses(w io.Writer) error {
	var out bytes.Buffer
	for n, c := range i.sorted() {
		if n > 0 {
			out.WriteString("---\n")
		}
		fmt.Fprintf(&out, classText, c.resource, c.why, c.name(i.source), strings.ReplaceAll(c.expression(i.driver), "'", "''"))
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write DeviceClasses: %w", err)
	}
	return nil
}

// WriteComments writes as comments where all comes from, and the notes about a policy, or with nil all notes.
func (i *Import) WriteComments(w io.Writer, p *v1alpha1.NodePolicy) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Made by cleave import %s.\n", i.source)
	head := "# Not taken over as it is:\n"
	notes := i.Notes
	if p != nil {
		notes = slices.Concat(notes, i.copied)
	}
	for _, n := range notes {
		if p == nil || n.policy == "" || n.policy == p.Metadata.Name {
			fmt.Fprintf(&out, "%s# - %s\n", head, n)
			head = ""
		}
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the notes: %w", err)
	}
	return nil
}
