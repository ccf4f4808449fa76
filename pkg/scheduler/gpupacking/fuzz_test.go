// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

func FuzzArgs(f *testing.F) {
	for _, text := range []string{"", "candidates: 8\nstrategy: Pack\nstrategies: {gpu.cleave.dev: Spread}\ndrivers: [a]", `{"candidates":1e9}`, "strategies: {\"a\\nb\": x}", "&a [*a]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		args, err := parseArgs(&runtime.Unknown{Raw: raw})
		if err != nil {
			return
		}
		if args.Candidates < 1 || args.Candidates > maxCandidates {
			t.Errorf("%q: %d candidates", raw, args.Candidates)
		}
		for _, s := range append(values(args.Strategies), args.Strategy) {
			if _, err := packing.ParseStrategy(string(s)); err != nil {
				t.Errorf("%q: %v", raw, err)
			}
		}
	})
}

func values(m map[string]packing.Strategy) []packing.Strategy {
	var all []packing.Strategy
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}
