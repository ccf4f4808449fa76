// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"testing"
)

// BenchmarkPlace is what the plugin itself takes for a pod among 1,000 nodes, the reading of its first pod left out.
func BenchmarkPlace(b *testing.B) {
	for _, class := range []string{"1g.10gb", "gpu", "mps"} {
		b.Run(class, func(b *testing.B) {
			bed := newBed(b, "")
			names := make([]string, 1000)
			for i := range names {
				names[i] = fmt.Sprintf("n%04d", i)
			}
			bed.addNodes("hgx-h100", names...)
			bed.preFilter(bed.pod("first", class))
			for i := 0; b.Loop(); i++ {
				name := fmt.Sprint("pod-", i)
				bed.place(bed.pod(name, class))
				bed.store(name)
			}
		})
	}
}
