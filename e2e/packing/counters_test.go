// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
)

// BenchmarkCounters measures what the counters for quotas cost the scheduler: it fills a node with the allocator of Kubernetes
// 1.37, with and without them.
func BenchmarkCounters(b *testing.B) {
	inventory, err := Inventory(b.Context(), "hgx-h100")
	must(b, err)
	for i := range inventory.GPUs {
		inventory.GPUs[i].MIG.Enabled = true
	}
	deviceClasses, err := Classes("../../deployments/manifests")
	must(b, err)
	for _, class := range []string{"gpu.cleave.dev", "mig-1g.10gb.cleave.dev", timeSlice} {
		for _, counters := range [][]v1alpha1.QuotaCounter{nil, v1alpha1.QuotaCounters()} {
			rule := v1alpha1.Rule{Publish: &v1alpha1.PublishPolicy{Counters: counters}}
			published := Cleave(policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{rule}}, inventory.Node, policy.Capabilities{}))
			b.Run(fmt.Sprintf("class=%s/counters=%d", class, len(counters)), func(b *testing.B) {
				fill(b, published, deviceClasses, class)
			})
		}
	}
}

// fill allocates claims of a class until the node is full, and starts again with an empty node.
func fill(b *testing.B, published []*resourceapi.ResourceSlice, deviceClasses allocator.Classes, class string) {
	b.Helper()
	node, err := allocator.NewNode(published, deviceClasses)
	must(b, err)
	var allocated []resourceapi.AllocationResult
	started, count := processorTime(b), 0
	for b.Loop() {
		results, err := node.Allocate(b.Context(), allocator.NewClaim("claim", class, 1))
		if err == nil {
			allocated, count = append(allocated, results...), count+1
			continue
		}
		if len(allocated) == 0 {
			b.Fatal(err)
		}
		node.Release(allocated...)
		allocated = nil
	}
	b.ReportMetric(float64(count)/(processorTime(b)-started).Seconds(), "allocations/cpu-s")
}

// processorTime is what the process has used: unlike the time on the wall, other work on the machine does not change it.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
