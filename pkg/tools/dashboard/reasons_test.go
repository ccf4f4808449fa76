// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

func TestReasons_AnsweredApart(t *testing.T) {
	source := newFakeSource(busyShot(3))
	source.answers = map[string]*explain.Explanation{"ml-research/waits": {Subject: "Pod ml-research/web",
		State: explain.Refused, Outlook: explain.Never, Limits: []explain.Cause{{Kind: explain.Count, Message: "no node has 9"}}, Groups: []explain.Group{
			{Nodes: []string{"gpu-a"}, Causes: []explain.Cause{{Kind: explain.InUse, Message: "all <8> devices are allocated to dev/a-b (a-b-0), dev/a (a-0)", Remedy: "wait",
				Claims: []explain.Use{{Claim: "dev/a-b"}, {Claim: "dev/a"}}}}},
		}, Alternatives: []explain.Alternative{{Class: "mps.cleave.dev", Count: 1, Nodes: []string{"gpu-a"}}}}}
	s := newServer(t, source, Config{Driver: "gpu.nvidia.com"})
	if body := get(s, "/claims").Body.String(); !strings.Contains(body, "Looking for the reason") {
		t.Error("the list waits for the reason")
	}
	get(s, "/claims/ml-research/waits")
	next := s.pages.reasons.changed()
	s.pages.reasons.batch(t.Context())
	<-next
	for path, want := range map[string]string{
		"/claims": "Never on the nodes of this cluster: no node has 9", "/claims/ml-research/waits": "1 of class mps.cleave.dev on gpu-a",
		"/claims/ml-research/waits?":    "<p>Pod ml-research/web never fits the nodes of this cluster:</p><ul><li>no node has 9</li></ul>",
		"/claims/ml-research/waits?a":   "all &lt;8&gt; devices are allocated",
		"/claims/ml-research/waits?c":   `to <a href="../../claims/dev/a-b">dev/a-b</a> (a-b-0), <a href="../../claims/dev/a">dev/a</a> (a-0)`,
		"/claims/ml-research/waits?b":   "<code>cleave explain pod -n ml-research --driver-name gpu.nvidia.com web</code>",
		"/api/claims/ml-research/waits": "allocated", "/claims/dev/a": `<div id="explanation"></div>`,
	} {
		if body := get(s, path).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s does not say %q:\n%s", path, want, body)
		}
	}
	s.pages.reasons.batch(t.Context()) // nothing is wanted
	source.failure = errors.New("broken slice")
	source.publish(busyShot(4)) // the cluster has changed: it is asked again
	get(s, "/claims")
	s.pages.reasons.batch(t.Context())
	if body := get(s, "/claims").Body.String(); !strings.Contains(body, "broken slice") {
		t.Error("the list does not say why there is no reason")
	}
	if diff := cmp.Diff([][]string{{"ml-research/waits", "ml-research/web-extended-resources"}, {"ml-research/waits", "ml-research/web-extended-resources"}}, source.asked); diff != "" {
		t.Errorf("questions (-want +got):\n%s", diff)
	}
}

// Between two snapshots a claim may have been allocated.
func TestReasons_Allocated(t *testing.T) {
	source := newFakeSource(busyShot(3))
	source.answers = map[string]*explain.Explanation{"ml-research/waits": {State: explain.Allocated}}
	s := newServer(t, source, Config{})
	get(s, "/claims")
	s.pages.reasons.batch(t.Context())
	if body := get(s, "/claims").Body.String(); !strings.Contains(body, "It is allocated.") {
		t.Errorf("got\n%s", body)
	}
}

// Time alone changes a reason, too: a pod that no scheduler has looked at is new at first.
func TestReasons_Old(t *testing.T) {
	asked := 0
	r := newReasons(func(context.Context, []string) (map[string]*explain.Explanation, error) {
		asked++
		return map[string]*explain.Explanation{}, nil
	})
	look := func() {
		r.of("dev/a", 1)
		r.batch(t.Context())
	}
	look()
	look()
	if asked != 1 {
		t.Errorf("asked %d times, want once: no snapshot has followed", asked)
	}
	old := r.known["dev/a"]
	old.at = old.at.Add(-2 * oldest)
	r.known["dev/a"] = old
	if look(); asked != 2 {
		t.Errorf("asked %d times, want twice: the answer is old", asked)
	}
}

// A claim that cannot be explained does not end the dashboard.
func TestReasons_Panic(t *testing.T) {
	r := newReasons(func(context.Context, []string) (map[string]*explain.Explanation, error) { panic("index out of range") })
	r.of("dev/a", 1)
	r.batch(t.Context())
	if a := r.of("dev/a", 1); a.err == nil || !strings.Contains(a.err.Error(), "index out of range") {
		t.Errorf("got %+v", a)
	}
}
