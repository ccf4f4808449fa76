// SPDX-License-Identifier: Apache-2.0

package nodeslices

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// Whoever writes the ConfigMap of policies: what is accepted of it can be published, and the rest is reported by file and
// policy.
func FuzzPolicies(f *testing.F) {
	const head = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n"
	for _, text := range []string{
		head, head + "rules: [{mps: {shares: 60, memory: {minimum: 1Mi, step: 1Mi}}, timeSlice: {shares: 1000}}]",
		head + "metadata: {name: a}\nrules: [{match: {indexes: [0]}, exclude: true}, {tiers: [mig], mig: {profiles: [1g.10gb]}}]\n---\n" + head + "metadata: {name: b}\n",
		head + "rules: [{mig: {layout: {1g.10gb: 7}, modeChange: whenIdle, sharing: {tiers: [mps]}}}]", head + "metadata: {name: \"../x\\n\"}",
	} {
		f.Add([]byte(text))
	}
	var nodes []*gpu.Node
	for _, model := range []string{"t4", "a30"} {
		session, err := simulated.Open(f.Context(), model)
		if err != nil {
			f.Fatal(err)
		}
		nodes = append(nodes, session.Node())
		if err := session.Close(); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set := policy.NewSet()
		for _, problem := range set.AddFile("policies.yaml", data, policy.Format{}, "policies") {
			if !strings.HasPrefix(problem.Error(), "policies.yaml: ") || strings.Contains(problem.Error(), "\n") {
				t.Errorf("problem %q", problem)
			}
		}
		for _, name := range set.Names() {
			_, p, err := set.Select(name)
			if err != nil {
				t.Fatalf("%q is in the set and cannot be selected: %v", name, err)
			}
			for _, node := range nodes {
				if policy.Check(p, node) == nil {
					checkLimits(t, slicesOf(t, policy.Apply(p, node, policy.Capabilities{})))
				}
			}
		}
	})
}
