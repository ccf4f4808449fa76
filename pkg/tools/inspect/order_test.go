// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInOrder_Kinds(t *testing.T) {
	all := []Amount{{Type: "mps"}, {Type: "mig", Profile: "7g.80gb"}, {Type: "mig", Profile: "1g.10gb+me"}, {Type: "timeslice"}, {Type: "mig", Profile: "odd"},
		{Type: "mig-mps", Profile: "1g.10gb"}, {Type: "mig", Profile: "1g.10gb"}, {Type: "mig", Profile: "1g.5gb"}, {Type: "gpu"}, {Type: "mig", Profile: "1g.20gb"}}
	InOrder(all)
	var got []string
	for _, a := range all {
		got = append(got, a.Type+" "+a.Profile)
	}
	want := []string{"gpu ", "mig odd", "mig 1g.5gb", "mig 1g.10gb", "mig 1g.10gb+me", "mig 1g.20gb", "mig 7g.80gb", "timeslice ", "mps ", "mig-mps 1g.10gb"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
