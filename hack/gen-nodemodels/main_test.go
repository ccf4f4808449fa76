// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// The inventories that cleave offers offline are the simulator's, and say the same once they are read.
func TestInventory_NodeModels(t *testing.T) {
	if diff := cmp.Diff(simulated.NodeModels(), models.Names()); diff != "" {
		t.Fatalf("models (-simulator +captured, make manifests writes them):\n%s", diff)
	}
	for _, model := range models.Names() {
		t.Run(model, func(t *testing.T) {
			want, err := inventory(t.Context(), model)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join("../../pkg/tools/inspect/models", model+".json"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("file (-simulator +captured, make manifests writes it):\n%s", diff)
			}
			session, err := simulated.Open(t.Context(), model)
			if err != nil {
				t.Fatal(err)
			}
			node, err := models.Load(model)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(session.Node(), node); diff != "" {
				t.Errorf("inventory (-simulator +read):\n%s", diff)
			}
			// What the command line assumes of a model: nothing is partitioned, and no driver limits memory by cgroup.
			for i := range node.GPUs {
				parts, err := session.Partitions(t.Context(), &node.GPUs[i])
				limits, unanswered := session.LimitsMemory(t.Context(), node.GPUs[i].PCI, t.TempDir())
				if err != nil || len(parts) > 0 || limits || unanswered != nil {
					t.Errorf("GPU %d: partitions %v, %v, memory limited: %t, %v", i, parts, err, limits, unanswered)
				}
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if !slices.IsSorted(models.Names()) {
		t.Errorf("names %q are not sorted", models.Names())
	}
}
