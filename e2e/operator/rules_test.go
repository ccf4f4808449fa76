// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stateLabel is where the operator writes how far a node is.
const stateLabel = "nvidia.com/gpu-driver-upgrade-state"

// States of a node, as k8s-operator-libs names them (pkg/upgrade/consts.go).
const (
	required   = "upgrade-required"
	cordon     = "cordon-required"
	waitJobs   = "wait-for-jobs-required"
	deletePods = "pod-deletion-required"
	restart    = "pod-restart-required"
	validate   = "validation-required"
	uncordon   = "uncordon-required"
	done       = "upgrade-done"
)

// walk is how a node is upgraded.
var walk = []string{required, cordon, waitJobs, deletePods, restart, validate, uncordon, done}

// onNode is what the rules know of a node at a time.
type onNode struct {
	state string
	// away is whether the driver's pod has left and the next one is not ready.
	away bool
	pods map[string]bool
	walk []string
}

// check goes through a history. It returns how each node was upgraded, and what was against the rules:
//   - one node at a time;
//   - while the driver is away, no pod with a claim is there nor comes;
//   - a pod is asked to end only by the operator's deletion of pods, which waits for those of training.
func check(events []event) (walks map[string][]string, broken []string) {
	nodes := map[string]*onNode{}
	for _, e := range events {
		n := nodes[e.node]
		if n == nil {
			n = &onNode{pods: map[string]bool{}}
			nodes[e.node] = n
		}
		complain := func(format string, args ...any) {
			broken = append(broken, fmt.Sprintf("node %s, in state %s: ", e.node, n.state)+fmt.Sprintf(format, args...))
		}
		switch e.what {
		case movedOn:
			n.state = e.of
			n.walk = append(n.walk, e.of)
			if busy := underWay(nodes); len(busy) > 1 {
				complain("%v are upgraded at once", busy)
			}
			if left := n.training(); e.of == deletePods && len(left) > 0 {
				complain("training has not ended: %v", left)
			}
		case left:
			n.away = true
			if len(n.pods) > 0 {
				complain("the driver leaves under %v", slices.Sorted(maps.Keys(n.pods)))
			}
		case ready:
			n.away = false
		case came:
			n.pods[e.of] = true
			if n.away {
				complain("pod %s comes without a driver", e.of)
			}
		case asked:
			if n.state != deletePods {
				complain("pod %s is asked to end", e.of)
			}
		case went:
			delete(n.pods, e.of)
		}
	}
	walks = map[string][]string{}
	for name, n := range nodes {
		walks[name] = n.walk
	}
	return walks, broken
}

// underWay are the nodes that are upgraded.
func underWay(nodes map[string]*onNode) (names []string) {
	for name, n := range nodes {
		if !slices.Contains([]string{"", required, done}, n.state) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// training are the pods there that the operator is told to wait for.
func (n *onNode) training() (names []string) {
	for name := range n.pods {
		if strings.HasPrefix(name, training) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestCheck(t *testing.T) {
	at := func(what, of string) event { return event{node: "a", what: what, of: of} }
	fine := []event{
		at(movedOn, done), at(ready, "driver-1"), at(came, "training-1"), at(came, "p"), at(movedOn, waitJobs), at(went, "training-1"),
		at(movedOn, deletePods), at(asked, "p"), at(went, "p"), at(movedOn, restart), at(left, "driver-1"), at(ready, "driver-2"),
		at(movedOn, done), at(came, "q"),
	}
	without := func(i int) []event { return slices.Delete(slices.Clone(fine), i, i+1) }
	with := func(i int, e event) []event { return slices.Insert(slices.Clone(fine), i, e) }
	for name, c := range map[string]struct {
		events []event
		want   []string
	}{
		"fine":        {fine, nil},
		"a pod stays": {without(8), []string{"node a, in state pod-restart-required: the driver leaves under [p]"}},
		"training goes on": {without(5), []string{
			"node a, in state pod-deletion-required: training has not ended: [training-1]",
			"node a, in state pod-restart-required: the driver leaves under [training-1]",
		}},
		"a pod comes early": {with(11, at(came, "q")), []string{"node a, in state pod-restart-required: pod q comes without a driver"}},
		"a pod is evicted":  {with(4, at(asked, "p")), []string{"node a, in state upgrade-done: pod p is asked to end"}},
		"two nodes": {with(6, event{node: "b", what: movedOn, of: cordon}), []string{
			"node b, in state cordon-required: [a b] are upgraded at once", "node a, in state pod-deletion-required: [a b] are upgraded at once",
			"node a, in state pod-restart-required: [a b] are upgraded at once",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			walks, broken := check(c.events)
			if diff := cmp.Diff(c.want, broken); diff != "" {
				t.Errorf("rules broken (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{done, waitJobs, deletePods, restart, done}, walks["a"]); diff != "" {
				t.Errorf("walk (-want +got):\n%s", diff)
			}
		})
	}
}
