// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2/textlogger"

	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// TestCluster_IncrementalState replays random events, some of them late or twice, and compares the state of each node with
// one that is made anew of the claims: those of the API server, and those that are about to have devices.
func TestCluster_IncrementalState(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 1))
		b := newBed(t, "")
		names := []string{"n1", "n2", "n3"}
		b.addNodes("hgx-h100", names...)
		published := map[string][]*resourceapi.ResourceSlice{}
		for _, n := range names {
			published[n] = slicesOf(t, "hgx-h100", n)
		}
		classes := []string{"1g.10gb", "2g.20gb", "3g.40gb", "gpu", "mps"}
		for i := range 120 {
			pods := slices.Sorted(maps.Keys(b.claims))
			switch n := random.IntN(10); {
			case n < 5:
				pod := b.pod(fmt.Sprint("pod-", i), classes[random.IntN(len(classes))])
				if _, got := b.preFilter(pod); got == "UnschedulableAndUnresolvable" {
					delete(b.claims, pod.Name)
					continue
				}
				_, state := b.place(pod)
				if random.IntN(4) == 0 {
					b.plugin.Unreserve(t.Context(), state, pod, "")
					delete(b.pending, b.claims[pod.Name].UID)
					delete(b.claims, pod.Name)
				}
			case n < 7 && len(pods) > 0:
				if name := pods[random.IntN(len(pods))]; b.pending[b.claims[name].UID] != nil {
					b.store(name)
				}
			case n < 9 && len(pods) > 0:
				b.remove(pods[random.IntN(len(pods))])
			default: // a slice of a node goes and comes back
				of := published[names[random.IntN(len(names))]]
				s := of[random.IntN(len(of))]
				b.publish(s.DeepCopy())
				if random.IntN(2) == 0 {
					b.withdraw(s)
					b.preFilter(b.pod("looker", "gpu"))
					delete(b.claims, "looker")
					b.publish(s)
				}
			}
		}
		checkStates(t, b, names)
	}
}

func checkStates(t *testing.T, b *bed, names []string) {
	t.Helper()
	c := b.plugin.cluster
	for _, n := range names {
		v := c.views[n][0]
		c.refresh(v)
		state := v.node.NewState()
		state.Allocate(v.node.Uses(resultsIn(b))...)
		if !state.Equal(v.state) {
			t.Errorf("node %s: its state is not what its claims are", n)
		}
	}
}

// A log shows the nodes that were compared by name and cost, whatever its format.
func TestCandidate_InLogs(t *testing.T) {
	var out strings.Builder
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out)))
	logger.Info("Compared", "best", []candidate{{node: "n2", cost: packing.Cost{Lost: 12, Left: 5}}, {node: "n1", cost: packing.Cost{Lost: 14}}})
	want := `best=["n2{Rank:0 Lost:12 Spans:0 Broken:0 Left:5 Joined:0 Load:0 Replicas:0}",` +
		`"n1{Rank:0 Lost:14 Spans:0 Broken:0 Left:0 Joined:0 Load:0 Replicas:0}"]`
	if !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}

// TestReadAhead: what nodes publish when the scheduler starts is read before the first pod comes.
func TestReadAhead(t *testing.T) {
	client := fake.NewClientset()
	for _, node := range []string{"n1", "n2"} {
		for _, s := range slicesOf(t, "t4", node) {
			must(t, client.Tracker().Add(s))
		}
	}
	all := newInformers(client)
	c, err := (&Shared{}).clusterOf(t.Context(), &bed{t: t, client: client, informers: all, recorder: events.NewFakeRecorder(1)})
	must(t, err)
	c.changed = func(string) {} // nobody looks for collisions meanwhile
	all.Start(t.Context().Done())
	t.Cleanup(all.Shutdown)
	<-c.ahead
	for _, node := range []string{"n1", "n2"} {
		if views := c.views[node]; len(views) != 1 || views[0].stale || views[0].node == nil {
			t.Errorf("node %s is not read: %+v", node, views)
		}
	}
}
