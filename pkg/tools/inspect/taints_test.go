// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

func TestMeanings_EveryTaint(t *testing.T) {
	files, err := filepath.Glob("../../domain/nodeslices/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)^\s*(?:const )?Taint\w+\s*=\s*"([^"]+)"`).FindAllSubmatch(source, -1) {
			found[string(match[1])] = true
		}
	}
	if !found[nodeslices.TaintOccupied] {
		t.Fatalf("found the taints %v: not even %s", found, nodeslices.TaintOccupied)
	}
	found[v1alpha1.AllocatedTwiceTaint] = true
	for key := range found {
		if meanings[key] == "" {
			t.Errorf("%s has no meaning: add it to meanings", key)
		}
	}
}
