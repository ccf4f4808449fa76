package imports

import (
	"bytes"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// WritePolicy writes one of the policies as YAML.
func (i *Import) WritePolicy(w io.Writer, p *v1alpha1.NodePolicy) error {
	if err := writeYAML(w, p); err != nil {
		return fmt.Errorf("write policy %s: %w", p.Metadata.Name, err)
	}
	return nil
}

// WriteClasses writes the DeviceClasses as YAML documents, each with what it hands out as a comment.
func (i *Import) WriteClasses(w io.Writer) error {
	for n, c := range i.sorted() {
		if n > 0 {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return fmt.Errorf("write DeviceClasses: %w", err)
			}
		}
		object := c.object(i.source, i.driver)
		if _, err := fmt.Fprintf(w, "# %s: %s\n", c.resource, c.why); err != nil {
			return fmt.Errorf("write DeviceClass %s: %w", object.Name, err)
		}
		if err := writeYAML(w, object); err != nil {
			return fmt.Errorf("write DeviceClass %s: %w", object.Name, err)
		}
	}
	return nil
}

// WriteComments writes as comments where all comes from, and the notes.
func (i *Import) WriteComments(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Made by cleave import %s.\n", i.source)
	if len(i.Notes) > 0 {
		fmt.Fprint(&out, "# Not taken over as it is:\n")
		for _, n := range i.Notes {
			fmt.Fprintf(&out, "# - %s\n", n)
		}
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the notes: %w", err)
	}
	return nil
}

func writeYAML(w io.Writer, v any) error {
	data, err := yaml.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
