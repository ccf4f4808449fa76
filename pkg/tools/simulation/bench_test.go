// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BenchmarkRun_200Nodes is of a fifth of the pods' lifetimes: the 200 nodes are filled, and a fifth of their pods replaced.
func BenchmarkRun_200Nodes(b *testing.B) {
	pool := poolOf(b, "hgx-h100", 200)
	w := &Workload{Duration: metav1.Duration{Duration: 12 * time.Minute}, Pods: []Pods{
		kindOf("train", "gpu.cleave.dev", 8, 24),
		kindOf("serve", "mig-1g.10gb.cleave.dev", 1, 1200),
		kindOf("wide", "mig-3g.40gb.cleave.dev", 1, 560),
		kindOf("notebook", "timeslice.cleave.dev", 1, 640),
	}}
	for _, strategy := range Strategies() {
		b.Run(strategy, func(b *testing.B) {
			for b.Loop() {
				if _, err := Run(b.Context(), pool, w, []string{strategy}, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
