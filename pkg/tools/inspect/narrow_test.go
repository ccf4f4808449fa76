// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// Tables fit the terminal; in a pipe a line stays a row.
func TestTable_Width(t *testing.T) {
	rows := [][]string{{"GPU", "STATE", "FITS"}, {"GPU0", "free", "1 whole, 2x 3g.40gb, 7x 1g.10gb, 4 time slices"}, {"GPU1", "used", "-"}}
	tests := map[int]string{
		0:  "GPU   STATE  FITS\nGPU0  free   1 whole, 2x 3g.40gb, 7x 1g.10gb, 4 time slices\nGPU1  used   -\n",
		80: "GPU   STATE  FITS\nGPU0  free   1 whole, 2x 3g.40gb, 7x 1g.10gb, 4 time slices\nGPU1  used   -\n",
		40: "GPU   STATE  FITS\nGPU0  free   1 whole, 2x 3g.40gb,\n             7x 1g.10gb, 4 time slices\nGPU1  used   -\n",
		20: "GPU   STATE  FITS\nGPU0  free   1 whole, 2x 3g.40gb, 7x 1g.10gb, 4 time slices\nGPU1  used   -\n",
	}
	for width, want := range tests {
		p := &printer{fit: width}
		p.table(rows)
		if diff := cmp.Diff(want, p.String()); diff != "" {
			t.Errorf("width %d (-want +got):\n%s", width, diff)
		}
	}
	// All nodes have nine numbers: those that are zero give way.
	f := &Fleet{Nodes: []FleetNode{{Node: "gpu-node-1", Product: "NVIDIA H100 80GB HBM3", Summary: Summary{GPUs: 8, Free: 8, Fits: []Amount{
		{Type: typeGPU, Count: 8}, {Type: typeMIG, Profile: "1g.10gb", Count: 56}, {Type: typeMIG, Profile: "3g.40gb", Count: 16}, {Type: typeMPS, Count: 80}}}}}}
	f.Totals = f.Nodes[0].Summary
	written := func(width int) string {
		var b strings.Builder
		if err := f.Print(&b, Options{Width: width}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for line := range strings.Lines(written(80)) {
		if utf8.RuneCountInString(strings.TrimRight(line, "\n")) > 80 || strings.Contains(line, "UNHEALTHY") {
			t.Errorf("at 80 characters: %s", line)
		}
	}
	if wide := written(0); !strings.Contains(wide, "UNHEALTHY") || strings.Count(wide, "\n") != 3 {
		t.Errorf("in a pipe:\n%s", wide)
	}
}
