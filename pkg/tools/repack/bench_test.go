// SPDX-License-Identifier: Apache-2.0

package repack

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkAdvise_1000Nodes is for 1,000 nodes of eight H100, of which each has the pods of one of a few clusters.
func BenchmarkAdvise_1000Nodes(b *testing.B) {
	o := randomBed(b, "hgx-h100", 20, 300, rand.New(rand.NewPCG(1, 4)))
	const copies = 50
	all := Objects{Driver: o.o.Driver, Classes: o.o.Classes}
	var slices []*resourceapi.ResourceSlice
	var pods []*corev1.Pod
	for i := range copies {
		suffix := fmt.Sprintf("-%02d", i)
		for _, n := range o.o.Nodes {
			n := n.DeepCopy()
			n.Name += suffix
			n.Labels[corev1.LabelHostname] = n.Name
			all.Nodes = append(all.Nodes, n)
		}
		for _, claim := range o.o.Claims {
			claim := claim.DeepCopy()
			claim.Name, claim.UID = claim.Name+suffix, claim.UID+types.UID(suffix)
			claim.OwnerReferences[0].UID += types.UID(suffix)
			claim.Status.ReservedFor[0].UID += types.UID(suffix)
			for j := range claim.Status.Allocation.Devices.Results {
				claim.Status.Allocation.Devices.Results[j].Pool += suffix
			}
			all.Claims = append(all.Claims, claim)
		}
		for _, p := range o.pods {
			p := p.DeepCopy()
			p.Name, p.UID, p.Spec.NodeName = p.Name+suffix, p.UID+types.UID(suffix), p.Spec.NodeName+suffix
			p.Status.ResourceClaimStatuses[0].ResourceClaimName = &p.Name
			pods = append(pods, p)
		}
		for _, s := range o.slices {
			node := *s.Spec.NodeName + suffix
			copied := *s
			copied.Name, copied.Spec.Pool.Name, copied.Spec.NodeName = strings.Replace(s.Name, *s.Spec.NodeName, node, 1), node, &node
			slices = append(slices, &copied)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		c := NewCluster(all)
		for _, s := range slices {
			c.AddSlice(s)
		}
		for _, p := range pods {
			c.AddPod(p)
		}
		a, err := c.Advise(b.Context())
		if err != nil || len(a.Problems) > 0 {
			b.Fatal(err, a.Problems)
		}
		restarts := 0
		for _, s := range a.Steps {
			restarts += len(s.Pods)
		}
		b.ReportMetric(float64(len(pods)), "pods")
		b.ReportMetric(float64(a.WholeThen-a.WholeNow), "GPUs-freed")
		b.ReportMetric(float64(restarts), "restarts")
	}
}
