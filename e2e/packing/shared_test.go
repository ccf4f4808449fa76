// SPDX-License-Identifier: Apache-2.0

package packing

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"

	"github.com/google/go-cmp/cmp"
)

const (
	timeSlice = "timeslice.cleave.dev"
	mps       = "mps.cleave.dev"
)

// take allocates one claim of these requests. It returns GPU and class type of each device, with what it takes of
// memory and cores.
func (c *cluster) take(requests ...resourceapi.DeviceRequest) (got []string, release func(), err error) {
	c.t.Helper()
	c.claims++
	claim := newClaimOf(fmt.Sprintf("claim-%d", c.claims), resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}})
	results, err := c.Allocate(c.t.Context(), claim)
	if err != nil && !errors.Is(err, allocator.ErrNoFit) {
		c.t.Fatal(err)
	}
	for _, r := range results {
		for _, d := range r.Devices.Results {
			words := []string{fmt.Sprint(c.parent(d.Device)), c.text(d.Device, "type")}
			for _, name := range slices.Sorted(maps.Keys(d.ConsumedCapacity)) {
				q := d.ConsumedCapacity[name]
				if name != "shares" || q.Value() != 1 {
					words = append(words, fmt.Sprintf("%s=%s", name, q.String()))
				}
			}
			got = append(got, strings.Join(words, " "))
		}
	}
	return got, func() { c.Release(results...) }, err
}

// wants checks what a claim gets; "" stands for nothing.
func (c *cluster) wants(want string, requests ...resourceapi.DeviceRequest) (release func()) {
	c.t.Helper()
	got, release, err := c.take(requests...)
	if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
		c.t.Errorf("claim %d (-want +got): %v\n%s", c.claims, err, diff)
	}
	return release
}

func TestShares_TimeSlicesFillGPU(t *testing.T) {
	c := newCluster(t, offeredNode(t, "hgx-h100"))
	one := workload.Request("gpu", timeSlice, 1)
	var releases []func()
	for _, g := range []int{3, 4, 2, 5, 1, 6, 0, 7} {
		for range 4 {
			releases = append(releases, c.wants(fmt.Sprintf("%d timeslice memory=20224Mi", g), one))
		}
	}
	c.wants("", one)
	for _, class := range []string{"gpu.cleave.dev", "mig-1g.10gb.cleave.dev", mps} {
		c.wants("", workload.Request("gpu", class, 1))
	}
	releases[17]() // of GPU 1
	c.wants("1 timeslice memory=20224Mi", one)
}

func TestShares_MPSFillsGPU(t *testing.T) {
	c := newCluster(t, offeredNode(t, "hgx-h100"))
	for range 10 {
		c.wants("3 mps cores=10 memory=7936Mi", workload.Request("gpu", mps, 1))
	}
	c.wants("4 mps cores=10 memory=7936Mi", workload.Request("gpu", mps, 1))
}

func TestShares_OneRequest(t *testing.T) {
	c := newCluster(t, offeredNode(t, "hgx-h100"))
	c.wants("3 timeslice memory=20224Mi, 4 timeslice memory=20224Mi", workload.Request("gpus", timeSlice, 2))
	c.wants("2 mps cores=10 memory=7936Mi, 5 mps cores=10 memory=7936Mi, 1 mps cores=10 memory=7936Mi", workload.Request("gpus", mps, 3))
	c.wants("", workload.Request("gpus", timeSlice, 6)) // two have them, three are left

	alone := newCluster(t, offeredNode(t, "t4"))
	alone.wants("", workload.Request("gpus", timeSlice, 2))
	alone.wants("0 timeslice memory=3584Mi", workload.Request("gpu", timeSlice, 1))
}

func TestShares_TwoRequests(t *testing.T) {
	c := newCluster(t, offeredNode(t, "t4"))
	release := c.wants("0 timeslice memory=3584Mi, 0 timeslice memory=3584Mi", workload.Request("a", timeSlice, 1), workload.Request("b", timeSlice, 1))
	c.wants("0 timeslice memory=3584Mi", workload.Request("a", timeSlice, 1))
	c.wants("", workload.Request("a", timeSlice, 1), workload.Request("b", timeSlice, 1)) // one is left, and neither is given half
	c.wants("0 timeslice memory=3584Mi", workload.Request("a", timeSlice, 1))
	release()
	c.wants("0 timeslice memory=3584Mi, 0 timeslice memory=3584Mi", workload.Request("a", timeSlice, 1), workload.Request("b", timeSlice, 1))
	// Two ways to share in one claim need two GPUs.
	twoGPUs := model(t, "a30")
	twoGPUs.GPUs[0].MIG.Enabled, twoGPUs.GPUs[1].MIG.Enabled = false, false
	c = newCluster(t, offered(twoGPUs))
	c.wants("0 timeslice memory=5888Mi, 1 mps cores=10 memory=2304Mi", workload.Request("a", timeSlice, 1), workload.Request("b", mps, 1))
}

func TestShares_Amounts(t *testing.T) {
	c := newCluster(t, offeredNode(t, "hgx-h100"))
	quarter := c.wants("3 mps cores=25 memory=20Gi", workload.Request("gpu", mps, 1, "cores=25", "memory=20Gi"))
	c.wants("3 mps cores=50 memory=40Gi", workload.Request("gpu", mps, 1, "cores=50", "memory=40Gi"))
	// 25 percent and 19561 MiB are left.
	c.wants("4 mps cores=26 memory=1Gi", workload.Request("gpu", mps, 1, "cores=26", "memory=1Gi"))
	c.wants("4 mps cores=5 memory=20Gi", workload.Request("gpu", mps, 1, "cores=5", "memory=20Gi"))
	c.wants("3 mps cores=25 memory=19Gi", workload.Request("gpu", mps, 1, "cores=25", "memory=19400Mi"))
	quarter()
	c.wants("3 mps cores=25 memory=20Gi", workload.Request("gpu", mps, 1, "cores=25", "memory=20Gi"))

	for _, tt := range []struct {
		amounts []string
		want    string
	}{
		{[]string{"memory=1"}, "memory=1Gi"},
		{[]string{"memory=1Mi"}, "memory=1Gi"},
		{[]string{"memory=0"}, "memory=1Gi"},
		{[]string{"memory=1025Mi"}, "memory=1280Mi"},
		{[]string{"memory=10G"}, "memory=9728Mi"},
		{[]string{"memory=80896Mi"}, "memory=79Gi"},
		{[]string{"memory=80897Mi"}, ""}, // the next step is beyond the 81001 MiB that there are
		{[]string{"memory=80Gi"}, ""},
		{[]string{"memory=1Ti"}, ""},
		{[]string{"shares=2"}, "memory=20224Mi shares=2"},
		{[]string{"shares=4", "memory=40Gi"}, "memory=40Gi shares=4"},
		{[]string{"shares=5"}, ""},
		{[]string{"shares=500m"}, "memory=20224Mi"},
		{[]string{"cores=10"}, ""}, // time slices have none
		{[]string{"memory=1Gi", "bandwidth=1"}, ""},
	} {
		c := newCluster(t, offeredNode(t, "hgx-h100"))
		want := tt.want
		if want != "" {
			want = "3 timeslice " + want
		}
		t.Run(strings.Join(tt.amounts, ","), func(t *testing.T) {
			c.t = t
			c.wants(want, workload.Request("gpu", timeSlice, 1, tt.amounts...))
		})
	}
}

func TestShares_AmountsFollowPolicy(t *testing.T) {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	n := func(v int32) *int32 { return &v }
	c := newCluster(t, offeredNode(t, "hgx-h100", v1alpha1.Rule{
		MPS: &v1alpha1.MPSPolicy{
			Shares: n(4), Memory: &v1alpha1.MemoryCut{Minimum: q("5Gi"), Step: q("5Gi")}, Cores: &v1alpha1.CoreCut{Minimum: n(10), Step: n(15)},
		},
		TimeSlice: &v1alpha1.TimeSlicePolicy{Shares: n(1)},
	}))
	c.wants("3 mps cores=25 memory=15Gi", workload.Request("gpu", mps, 1))
	c.wants("3 mps cores=10 memory=5Gi", workload.Request("gpu", mps, 1, "cores=1", "memory=1Gi"))
	c.wants("3 mps cores=40 memory=25Gi", workload.Request("gpu", mps, 1, "cores=26", "memory=21Gi"))
	c.wants("4 mps cores=40 memory=5Gi", workload.Request("gpu", mps, 1, "cores=26", "memory=5Gi"))
	c.wants("3 mps cores=25 memory=15Gi", workload.Request("gpu", mps, 1))
	// Four have it, and no more may, though there is memory left.
	c.wants("4 mps cores=10 memory=5Gi", workload.Request("gpu", mps, 1, "cores=1", "memory=1Gi"))
	// One share is the whole, for one claim at a time.
	c.wants("2 timeslice memory=79Gi", workload.Request("gpu", timeSlice, 1))
	c.wants("5 timeslice memory=1Gi", workload.Request("gpu", timeSlice, 1, "memory=1Gi"))
	c.wants("1 timeslice memory=1Gi", workload.Request("gpu", timeSlice, 1, "memory=1Gi"))
}

func TestShares_UnknownMemory(t *testing.T) {
	inventory := model(t, "t4")
	inventory.GPUs[0].Memory = nil
	c := newCluster(t, offered(inventory))
	for range 4 {
		c.wants("0 timeslice", workload.Request("gpu", timeSlice, 1))
	}
	c.wants("", workload.Request("gpu", timeSlice, 1))
	c = newCluster(t, offered(inventory))
	c.wants("", workload.Request("gpu", timeSlice, 1, "memory=1Gi"))
}

func TestShares_OneTierAtATime(t *testing.T) {
	ways := []string{"gpu.cleave.dev", "mig.cleave.dev", timeSlice, mps}
	for board, has := range map[string][]string{
		"H100-80": ways, "RTX-PRO-6000": ways, "T4": {"gpu.cleave.dev", timeSlice, mps}, "A100-80": {"gpu.cleave.dev", timeSlice, mps},
	} {
		for _, first := range has {
			for _, second := range ways {
				node := boardNode(t, board)
				node.GPUs = node.GPUs[:1]
				node.GPUs[0].MIG.Enabled = node.GPUs[0].MIG.Capable && !node.GPUs[0].MIG.NeedsReset
				c := newCluster(t, offered(node))
				_, release, err := c.take(workload.Request("gpu", first, 1))
				if err != nil {
					t.Fatalf("%s: %s: %v", board, first, err)
				}
				_, _, err = c.take(workload.Request("gpu", second, 1))
				if fits := first == second && first != "gpu.cleave.dev"; (err == nil) != fits {
					t.Errorf("%s: %s alongside %s: got %v, want it to fit: %t", board, second, first, err, fits)
				}
				if first == second {
					continue
				}
				release()
				if _, _, err = c.take(workload.Request("gpu", second, 1)); (err == nil) != slices.Contains(has, second) {
					t.Errorf("%s: %s after %s: %v", board, second, first, err)
				}
			}
		}
	}
}

func TestShares_AmpereInMIGMode(t *testing.T) {
	inventory := model(t, "dgx-a100") // all in MIG mode
	for _, i := range []int{3, 5} {
		inventory.GPUs[i].MIG.Enabled = false
	}
	c := newCluster(t, offered(inventory))
	c.wants("3 timeslice memory=20224Mi, 5 timeslice memory=20224Mi", workload.Request("gpus", timeSlice, 2))
	c.wants("", workload.Request("gpus", timeSlice, 3))
	c.wants("", workload.Request("gpu", mps, 1))
	c.wants("0 mig", workload.Request("gpu", "mig.cleave.dev", 1))
}

func TestShares_TiersKeepApart(t *testing.T) {
	c := newCluster(t, offeredNode(t, "hgx-h100"))
	c.wants("3 timeslice memory=20224Mi", workload.Request("gpu", timeSlice, 1))
	c.wants("7 gpu", workload.Request("gpu", "gpu.cleave.dev", 1))
	c.wants("0 mig", workload.Request("gpu", "mig-1g.10gb.cleave.dev", 1))
	c.wants("4 mps cores=10 memory=7936Mi", workload.Request("gpu", mps, 1))
	c.wants("6 gpu, 5 gpu, 2 gpu, 1 gpu", workload.Request("gpus", "gpu.cleave.dev", 4))
	c.wants("", workload.Request("gpu", "gpu.cleave.dev", 1))
	c.wants("3 timeslice memory=20224Mi", workload.Request("gpu", timeSlice, 1))
}

func TestShares_Tainted(t *testing.T) {
	c := newCluster(t, offeredNode(t, "t4"))
	release := c.wants("0 mps cores=10 memory=1280Mi", workload.Request("gpu", mps, 1))
	for _, s := range c.slices {
		for i := range s.Spec.Devices {
			if d := &s.Spec.Devices[i]; *d.Attributes["type"].StringValue == string(gpu.MPS) {
				d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.cleave.dev/mps-unavailable", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
	c.wants("", workload.Request("gpu", mps, 1))
	c.wants("", workload.Request("gpu", "gpu.cleave.dev", 1))
	c.wants("", workload.Request("gpu", timeSlice, 1))
	release()
	c.wants("", workload.Request("gpu", mps, 1))
	c.wants("0 gpu", workload.Request("gpu", "gpu.cleave.dev", 1))
}

// A share goes to a GPU that is shared already, wherever it stands in the static order.
func TestShares_OpenGPUFirst(t *testing.T) {
	for _, follows := range []bool{false, true} {
		node := offeredNode(t, "hgx-h100")
		c := newCluster(t, node)
		one := workload.Request("gpu", timeSlice, 1)
		var first []func()
		for range 4 {
			first = append(first, c.wants("3 timeslice memory=20224Mi", one))
		}
		c.wants("4 timeslice memory=20224Mi", one)
		for _, release := range first {
			release()
		}
		want := "3 timeslice memory=20224Mi" // untouched again
		if follows {
			open := gpu.Shape{GPU: &node.GPUs[4], Share: gpu.TimeSlice}.Name()
			order := (&nodeslices.View{Claims: func(s gpu.Shape) int {
				if s.Name() == open {
					return 1
				}
				return 0
			}}).Shared(node)
			c.reorder(order)
			want = "4 timeslice memory=20224Mi"
		}
		c.wants(want, one)
	}
}

// kube-scheduler 1.37 counts the amounts of a claim twice between the API server's answer and the end of PreBind: as
// allocated, and as in flight (GatherAllocatedState of its plugin dynamicresources). A claim in that moment finds less
// room than there is, which no order of devices mends.
func TestShares_CountedTwiceInFlight(t *testing.T) {
	for _, inFlight := range []bool{false, true} {
		c := newCluster(t, offeredNode(t, "hgx-h100"))
		first := newClaimOf("embeddings", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{workload.Request("gpu", mps, 1, "cores=25", "memory=20Gi")},
		}})
		results, err := c.Allocate(t.Context(), first)
		must(t, err)
		want := "3 mps cores=50 memory=40Gi"
		if inFlight {
			c.Take(results...)
			want = "4 mps cores=50 memory=40Gi"
		}
		c.wants(want, workload.Request("gpu", mps, 1, "cores=50", "memory=40Gi"))
	}
}
