// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
	"github.com/cleave-dra/cleave/pkg/tools/simulation"
)

// The pictures of docs/simulate.md are what make packing-pictures draws.
func TestPictures_UpToDate(t *testing.T) {
	inventory, err := models.Load("hgx-h100")
	must(t, err)
	classes, err := manifests.Classes()
	must(t, err)
	pool := simulation.Pool{
		Model: "hgx-h100", Nodes: 50, Node: policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), Driver: v1alpha1.Group, Classes: classes,
	}
	for _, name := range []string{"inference", "training", "mixed", "queues"} {
		data := readFile(t, examplesDir+"/workloads/"+name+".yaml")
		w, err := simulation.Decode(data)
		must(t, err)
		report, err := simulation.Run(t.Context(), pool, w, w.Strategies(), 1)
		must(t, err)
		var got bytes.Buffer
		must(t, report.SVG(&got, name))
		want := readFile(t, "../../docs/images/packing-"+name+".svg")
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			t.Errorf("%s: make packing-pictures draws another picture (-docs +drawn):\n%.2000s", name, diff)
		}
	}
}
