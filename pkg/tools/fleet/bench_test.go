// SPDX-License-Identifier: Apache-2.0

package fleet

import "testing"

func BenchmarkSource_Node(b *testing.B) {
	s := running(b, clusterOf(b, "hgx-h100", []string{"a"}, claimed("ml", "x", "gpu.cleave.dev", "a", "gpu-0000-19-00-0")), Config{})
	b.ReportAllocs()
	for b.Loop() {
		if s.node(b.Context(), "a", nil) == nil {
			b.Fatal("no node")
		}
	}
}

func BenchmarkPack(b *testing.B) {
	slices := slicesOf(b, "hgx-h100", "a")
	size := 0
	b.ReportAllocs()
	for b.Loop() {
		size = 0
		for i := range slices {
			p, err := pack(&slices[i])
			if err != nil {
				b.Fatal(err)
			}
			size += len(p.(*packedSlice).data)
		}
	}
	b.ReportMetric(float64(size), "bytes/node")
}
