// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"os"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A look at all processes of this machine; the time for each is what matters.
func BenchmarkOfPods(b *testing.B) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	count := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			count++
		}
	}
	for b.Loop() {
		if _, err := Host().OfPods(b.Context(), []types.UID{"f7a1de66-8f4a-4a36-b2f5-4c8a3c2f6a57"}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(count), "ns/process")
}
