// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// prepareAndUnprepare measures one claim's life on a plugin.
func prepareAndUnprepare(b *testing.B, e *Preparer, claim *resourceapi.ResourceClaim) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		mustPrepare(b, e, claim)
		mustUnprepare(b, e, claim)
	}
}

func BenchmarkPrepare_WholeGPU(b *testing.B) {
	bed := newBed(b)
	prepareAndUnprepare(b, bed.Preparer, claimOn("a", 0))
}

func BenchmarkPrepare_Partition(b *testing.B) {
	bed := newSimBed(b, "hgx-h100")
	prepareAndUnprepare(b, bed.Preparer, deviceClaim("a", bed.name(0, 19, 6)))
}

// The cost of a share does not depend on how many the node has.
func BenchmarkPrepare_Share(b *testing.B) {
	for _, others := range []int{0, 99} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			bed := newBed(b)
			for i := range bed.hardware.node.GPUs {
				bed.hardware.node.Offers[i].TimeSlice.Memory.Total *= 100
			}
			for i := range others {
				bed.prepare(types.UID(fmt.Sprintf("other-%d", i)), sliceOf(1, 1))
			}
			prepareAndUnprepare(b, bed.Preparer, bed.claim("a", sliceOf(0, 1)))
		})
	}
}
