// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// fakeSource has the snapshots that a test gives it.
type fakeSource struct {
	mu    sync.Mutex
	shot  *fleet.Snapshot
	next  chan struct{}
	views map[string]*inspect.View

	answers map[string]*explain.Explanation
	failure error
	asked   [][]string
}

func newFakeSource(shot *fleet.Snapshot) *fakeSource {
	return &fakeSource{shot: shot, next: make(chan struct{}), views: map[string]*inspect.View{}}
}

func (f *fakeSource) Snapshot() *fleet.Snapshot { f.mu.Lock(); defer f.mu.Unlock(); return f.shot }
func (f *fakeSource) Next() <-chan struct{}     { f.mu.Lock(); defer f.mu.Unlock(); return f.next }

func (f *fakeSource) publish(shot *fleet.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shot = shot
	close(f.next)
	f.next = make(chan struct{})
}

func (f *fakeSource) View(node string) (*inspect.View, error) {
	if v := f.views[node]; v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("node %s: %w", node, fleet.ErrUnknown)
}

func (f *fakeSource) Explain(_ context.Context, keys []string) (map[string]*explain.Explanation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, slices.Sorted(slices.Values(keys)))
	return f.answers, f.failure
}

func newServer(t testing.TB, source Source, config Config) *Server {
	t.Helper()
	s, err := New(source, config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// get asks as a browser on this machine does.
func get(s http.Handler, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "localhost:8080"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// busyNode has a GPU of each use.
func busyNode(name string, version uint64) *fleet.Node {
	bar := func(units int, state inspect.SegmentState, label, claim string) fleet.Bar {
		return fleet.Bar{Units: units, Part: float64(units) / 8, State: state, Means: state.String(), Label: label, Claim: claim}
	}
	return &fleet.Node{Name: name, Version: version, Policy: "inference", GPUs: []fleet.GPU{
		{Name: "GPU0", Device: "gpu-0", Product: "NVIDIA H100", Units: 8, Use: fleet.Whole, Free: "nothing",
			Bars: []fleet.Bar{bar(8, inspect.SegmentAllocated, "whole", "ml-research/train")}},
		{Name: "GPU1", Device: "gpu-1", Product: "NVIDIA H100", Units: 8, Use: fleet.Partitioned, Free: "3x 1g.10gb",
			Bars: []fleet.Bar{bar(1, inspect.SegmentAllocated, "1g.10gb", "dev/a"), bar(1, inspect.SegmentFree, "", ""), bar(1, inspect.SegmentFree, "", ""),
				bar(1, inspect.SegmentTainted, "", ""), bar(4, inspect.SegmentReady, "3g.40gb", "")}},
		{Name: "GPU2", Device: "gpu-2", Product: "NVIDIA H100", Units: 8, Use: fleet.Closed, Free: "nothing",
			Bars:   []fleet.Bar{bar(8, inspect.SegmentTainted, "", "")},
			Taints: []inspect.Taint{{Key: "gpu.cleave.dev/unhealthy", Value: "xid-79", Effect: "NoExecute", Meaning: "the GPU is unhealthy"}}},
	}, Free: []inspect.Amount{{Type: "gpu", Count: 2}, {Type: "mig", Profile: "1g.10gb", Count: 3}}, Fragmentation: 0.176}
}

// busyView is what a node's slices say, in short.
func busyView(name string) *inspect.View {
	one := inspect.GPU{Name: "GPU0", Device: "gpu-0", Product: "NVIDIA H100", UUID: "GPU-1", Slices: 8,
		Shapes: []inspect.Shape{{Device: "gpu-0", Type: "gpu", State: inspect.Allocated,
			Claims: []inspect.Claim{{Claim: "ml-research/train", Pods: []string{"train-0"}}},
			Taints: []inspect.Taint{{Key: "gpu.cleave.dev/unhealthy", Value: "xid-79", Effect: "NoExecute", Meaning: "the GPU is unhealthy"}}}},
		Partitions: []inspect.Partition{{Profile: "1g.10gb", Placement: gpu.Placement{Start: 3, Size: 1}, State: inspect.PartitionReady}}}
	two := one
	two.Name, two.Device = "GPU1", "gpu-1"
	return &inspect.View{Source: inspect.Cluster, Node: name, GPUs: []inspect.GPU{one, two}, Connections: [][]string{{"X", "NV18"}, {"NV18", "X"}}}
}

// busyShot is a small cluster.
func busyShot(version uint64) *fleet.Snapshot {
	created := time.Date(2026, 8, 24, 22, 5, 0, 0, time.UTC)
	return &fleet.Snapshot{
		Version: version, Nodes: []*fleet.Node{busyNode("gpu-a", 1)},
		Claims: []*fleet.Claim{
			{Namespace: "dev", Name: "a", UID: "1", Created: created, Allocated: true, Version: 1, Pods: []string{"a-0"},
				Requests: []fleet.Request{{Name: "gpu", Asks: []string{"mig-1g.10gb.cleave.dev"}}},
				Devices:  []fleet.Device{{Request: "gpu", Node: "gpu-a", Pool: "gpu-a", Device: "gpu-1-mig-19-0", UUID: "MIG-1"}}},
			{Namespace: "ml-research", Name: "waits", UID: "2", Created: created, Version: 1,
				Requests: []fleet.Request{{Name: "gpu", Asks: []string{"2x gpu.cleave.dev", "mps.cleave.dev"}}}},
			{Namespace: "ml-research", Name: "web-extended-resources", UID: "3", Created: created, Version: 1, Pods: []string{"web"}, ExtendedResources: true,
				Requests: []fleet.Request{{Name: "main", Asks: []string{"2x nvidia.com/gpu"}}}},
		},
		Totals:  fleet.Totals{Nodes: 1, GPUs: 3, Whole: 1, Partitioned: 1, Closed: 1, Tainted: 1, Allocated: 1, Pending: 2, Fragmentation: 0.176},
		Notices: []string{"Taints of DeviceTaintRules are not shown: forbidden"},
	}
}
