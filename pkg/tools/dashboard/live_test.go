// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

func listPage(items ...fragment) *page {
	return &page{parts: []part{{single: &fragment{"head", "<p>", 0}}, {list: &list{"rows", items}}}}
}

func TestDiffer_Next(t *testing.T) {
	s := newServer(t, newFakeSource(nil), Config{})
	a, b, c := fragment{"a", "A", 3}, fragment{"b", "B", 5}, fragment{"c", "C", 6}
	changed := fragment{"a", "A2", 7}
	for name, test := range map[string]struct {
		seen  string
		pages []*page
		want  []update // empty ones stand for nothing sent
	}{
		"page of before": {s.program + "-5", []*page{listPage(a, b, c)}, []update{{
			Set: map[string]string{"head": "<p>", "c": "C"}, Order: map[string][]string{"rows": {"a", "b", "c"}}}}},
		"another program": {"older.abc-99", []*page{listPage(a, b)}, []update{{
			Set: map[string]string{"head": "<p>", "a": "A", "b": "B"}, Order: map[string][]string{"rows": {"a", "b"}}}}},
		"nothing seen": {"", []*page{listPage(a)}, []update{{Set: map[string]string{"head": "<p>", "a": "A"}, Order: map[string][]string{"rows": {"a"}}}}},
		"no change":    {s.program + "-9", []*page{listPage(a), listPage(a)}, []update{{Set: map[string]string{"head": "<p>"}, Order: map[string][]string{"rows": {"a"}}}, {}}},
		"one row":      {s.program + "-6", []*page{listPage(a, b, c), listPage(changed, b, c)}, []update{{}, {Set: map[string]string{"a": "A2"}}}},
		"row gone":     {s.program + "-6", []*page{listPage(a, b), listPage(b)}, []update{{}, {Order: map[string][]string{"rows": {"b"}}}}},
		"row moved":    {s.program + "-6", []*page{listPage(a, b), listPage(b, a)}, []update{{}, {Order: map[string][]string{"rows": {"b", "a"}}}}},
		"row new": {s.program + "-6", []*page{listPage(a), listPage(c, a)}, []update{{},
			{Set: map[string]string{"c": "C"}, Order: map[string][]string{"rows": {"c", "a"}}}}},
		"row gone and back": {s.program + "-6", []*page{listPage(a, b), listPage(b), listPage(a, b)}, []update{{}, {Order: map[string][]string{"rows": {"b"}}},
			{Set: map[string]string{"a": "A"}, Order: map[string][]string{"rows": {"a", "b"}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := s.newDiffer(test.seen)
			for i, p := range test.pages {
				got := d.next(p)
				if i == 0 && len(test.want[0].Set) == 0 {
					continue // checked by the first rows
				}
				want := test.want[i]
				if len(want.Set) == 0 {
					want.Set = map[string]string{}
				}
				if want.Order == nil {
					want.Order = map[string][]string{}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("update %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// stream reads events of a live page.
type stream struct {
	t    *testing.T
	body io.Closer
	read *bufio.Reader
}

func openStream(t *testing.T, server *httptest.Server, path string) *stream {
	t.Helper()
	r, err := http.Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Body.Close() })
	if got := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("%s: %s, %s", path, r.Status, got)
	}
	return &stream{t, r.Body, bufio.NewReader(r.Body)}
}

// next is the next event that is no beat.
func (s *stream) next() (string, update) {
	s.t.Helper()
	var name string
	for {
		line, err := s.read.ReadString('\n')
		if err != nil {
			s.t.Fatal(err)
		}
		line = strings.TrimSuffix(line, "\n")
		if after, ok := strings.CutPrefix(line, "event: "); ok {
			name = after
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok && name != "beat" {
			var u update
			if err := json.Unmarshal([]byte(data), &u); err != nil {
				s.t.Fatal(err)
			}
			return name, u
		}
	}
}

func TestStream_ChangedRowsOnly(t *testing.T) {
	shot := busyShot(3)
	shot.Nodes = append(shot.Nodes, busyNode("gpu-b", 2))
	source := newFakeSource(shot)
	s := newServer(t, source, Config{})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	live := openStream(t, server, "/?live="+s.live(shot))
	_, first := live.next()
	if first.Live != s.live(shot) || first.Set["node-gpu-a"] != "" {
		t.Errorf("the first event has rows that the page has: %+v", first)
	}
	next := *shot
	next.Version = 4
	changed := busyNode("gpu-b", 4)
	changed.State = "cordoned"
	next.Nodes = []*fleet.Node{shot.Nodes[0], changed}
	source.publish(&next)
	_, second := live.next()
	if len(second.Set) != 1 || !strings.Contains(second.Set["node-gpu-b"], "cordoned") || len(second.Order) != 0 || second.Live != s.live(&next) {
		t.Errorf("got %+v, want the row that changed", second)
	}
	// A live page of a node that goes away says so.
	source.views["gpu-b"] = busyView("gpu-b")
	node := openStream(t, server, "/nodes/gpu-b?live="+s.live(&next))
	node.next()
	gone := next
	gone.Version, gone.Nodes = 5, next.Nodes[:1]
	source.publish(&gone)
	if name, _ := node.next(); name != "gone" {
		t.Errorf("got event %q, want gone", name)
	}
	if _, u := live.next(); !slices.Equal(u.Order["nodes"], []string{"node-gpu-a"}) {
		t.Errorf("got %+v, want the order without the node", u)
	}
}

func TestStream_Bounded(t *testing.T) {
	s := newServer(t, newFakeSource(busyShot(1)), Config{MaxStreams: 2})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	one := openStream(t, server, "/?live=")
	one.next()
	openStream(t, server, "/claims?live=").next()
	r, err := http.Get(server.URL + "/?live=")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third stream of two: %s", r.Status)
	}
}
