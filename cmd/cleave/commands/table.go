// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// printTable writes a line per device, in order of the scheduler's search.
func printTable(w io.Writer, list *resourceapi.ResourceSliceList) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLICE\tDEVICE\tTYPE\tPROFILE\tPRODUCT\tMEMORY\tNUMA\tNVLINKS\tUUID")
	devices := 0
	for i, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			devices++
			memory := "-"
			if capacity, ok := d.Capacity["memory"]; ok {
				memory = fmt.Sprintf("%.1fGi", float64(capacity.Value.Value())/(1<<30))
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i, d.Name, attribute(d, "type"), attribute(d, "profile"),
				attribute(d, "productName"),
				memory, attribute(d, "resource.kubernetes.io/numaNode"), attribute(d, "nvlinkCount"), attribute(d, "uuid"))
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the slices: %w", err)
	}
	_, err := fmt.Fprintf(w, "%s in %s, first fit from the top.\n", amount(devices, "device"), amount(len(list.Items), "ResourceSlice"))
	return err
}

// amount is a number of things, in words.
func amount(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// attribute formats an attribute of a device; "-" if it is missing.
func attribute(d resourceapi.Device, name resourceapi.QualifiedName) string {
	return cmp.Or(inspect.AttributeText(d.Attributes[name]), "-")
}
