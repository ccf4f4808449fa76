// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// checkGolden compares a page with a file in testdata, with a line for each element. The dialog at the end, which all pages have, is in a
// file of its own.
func checkGolden(t *testing.T, name string, s *Server, body string) {
	t.Helper()
	got := strings.ReplaceAll(strings.ReplaceAll(body, s.program, "PROGRAM"), s.build, "BUILD")
	got = strings.ReplaceAll(got, "><", ">\n<")
	page, dialog, _ := strings.Cut(got, "<dialog ")
	golden.Check(t, filepath.Join("testdata", name), page)
	golden.Check(t, filepath.Join("testdata", "dialog.html"), "<dialog "+dialog)
}

func TestPages_Golden(t *testing.T) {
	source := newFakeSource(busyShot(3))
	source.views["gpu-a"] = busyView("gpu-a")
	s := newServer(t, source, Config{})
	for file, path := range map[string]string{
		"overview.html": "/", "node.html": "/nodes/gpu-a", "claims.html": "/claims", "claim.html": "/claims/dev/a",
		"extended.html": "/claims/ml-research/web-extended-resources",
	} {
		w := get(s, path)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
		checkGolden(t, file, s, w.Body.String())
	}
}

// walk calls f for each element of a page.
func walk(t *testing.T, body string, f func(*html.Node)) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		f(n)
	}
}

// Names come from whoever may create objects. None of them adds an element or an attribute, or leads away.
func TestPages_HostileNames(t *testing.T) {
	for _, evil := range []string{
		`"><script>alert(1)</script>`, `' onmouseover='alert(1)`, `</ul><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `//evil.example.com/`,
		`../../evil`, "a\x00b\x1b[31m\u202e", "\xff\xfe", `{{.}}`, `</title><script>`, `</style>`, `<!--`, `]]>`, `&lt;`,
	} {
		shot := busyShot(3)
		n := busyNode(evil, 1)
		n.State, n.Problems, n.Policy = evil, []string{evil}, evil
		for i := range n.GPUs {
			g := &n.GPUs[i]
			g.Name, g.Device, g.Product, g.Free = evil, evil, evil, evil
			g.Bars[0].Label, g.Bars[0].Claim, g.Taints = evil, evil+"/"+evil, []inspect.Taint{{Key: evil, Value: evil, Meaning: evil}}
		}
		n.Free = []inspect.Amount{{Type: evil, Profile: evil, Count: 2}}
		shot.Nodes = []*fleet.Node{n}
		for _, c := range shot.Claims {
			c.Namespace, c.Name, c.UID, c.Pods = evil, evil, evil, []string{evil}
			c.Requests = []fleet.Request{{Name: evil, Asks: []string{evil}}}
			if c.Devices != nil {
				c.Devices = []fleet.Device{{Request: evil, Node: evil, Device: evil, UUID: evil}}
			}
		}
		shot.Notices = []string{evil}
		source := newFakeSource(shot)
		s := newServer(t, source, Config{})
		view := busyView(evil)
		for i := range view.GPUs {
			view.GPUs[i].Name, view.GPUs[i].Device, view.GPUs[i].UUID, view.GPUs[i].Notes = evil, evil, evil, []string{evil}
			view.GPUs[i].Shapes[0].Claims[0].Claim = evil + "/" + evil
		}
		source.views[evil] = view
		node, err := s.pages.nodePage(shot, evil)
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range map[string]*page{"overview": s.pages.overview(shot, query{page: 1, text: evil}), "node": node,
			"claims": s.pages.claimsPage(shot, query{page: 1}), "claim": {parts: []part{one("claim", 1, s.pages.claimHead(shot, shot.Claims[0]))}, title: evil}} {
			var b strings.Builder
			if err := writeDocument(&b, p.document("b", "l", false)); err != nil {
				t.Fatal(err)
			}
			walk(t, b.String(), func(n *html.Node) { checkElement(t, fmt.Sprintf("%s with %q", name, evil), n) })
		}
	}
}

var allowedElements = map[string]bool{}

func init() {
	for _, tag := range strings.Fields(`html head meta title link script body a header nav span button main dialog h1 h2 dl dt dd div kbd form
		section p ul li i small strong b em code time details summary input table thead tbody tr th td`) {
		allowedElements[tag] = true
	}
}

func checkElement(t *testing.T, where string, n *html.Node) {
	t.Helper()
	if n.Type == html.CommentNode {
		t.Errorf("%s: a comment %q", where, n.Data)
	}
	if n.Type != html.ElementNode {
		return
	}
	if !allowedElements[n.Data] {
		t.Errorf("%s: an element %s", where, n.Data)
	}
	if n.Data == "script" && (n.FirstChild != nil || len(n.Attr) != 2) {
		t.Errorf("%s: a script %+v", where, n)
	}
	for _, a := range n.Attr {
		if strings.HasPrefix(a.Key, "on") || a.Key == "style" {
			t.Errorf("%s: an attribute %s=%q", where, a.Key, a.Val)
		}
		if (a.Key == "href" || a.Key == "src") && !isBelow(a.Val) {
			t.Errorf("%s: a link to %q", where, a.Val)
		}
	}
}

// isBelow reports whether an address is of this server's pages.
func isBelow(address string) bool {
	rest := strings.TrimLeft(address, "./")
	if strings.HasPrefix(address, "/") || strings.Contains(rest, "..") && !strings.Contains(rest, "..%2F") {
		return false
	}
	for _, start := range []string{"?", "nodes/", "claims", "advice", "static/"} {
		if strings.HasPrefix(rest, start) {
			return true
		}
	}
	return rest == "" || address == "#main"
}

func TestOverview_Pages(t *testing.T) {
	shot := &fleet.Snapshot{Version: 1}
	for i := range 2*rowsPerPage + 5 {
		shot.Nodes = append(shot.Nodes, &fleet.Node{Name: fmt.Sprintf("n%05d", i), Version: 1})
	}
	s := newServer(t, newFakeSource(shot), Config{})
	for path, want := range map[string]int{
		"/": rowsPerPage, "/?page=2": rowsPerPage, "/?page=3": 5, "/?page=4": 0, "/?page=99999999999999999999": rowsPerPage, "/?page=-1": rowsPerPage,
		"/?page=x": rowsPerPage, "/?q=n0000": 10, "/?q=N00001": 1, "/?q=nothing": 0,
	} {
		if got := strings.Count(get(s, path).Body.String(), `class="row"`); got != want {
			t.Errorf("%s: %d rows, want %d", path, got, want)
		}
	}
	// Rows of nodes that are gone are forgotten.
	shot.Nodes = shot.Nodes[:3]
	get(s, "/")
	if len(s.pages.rows) != 3 {
		t.Errorf("%d rows are kept for 3 nodes", len(s.pages.rows))
	}
}

func TestOverview_Filter(t *testing.T) {
	n := busyNode("gpu-a", 1)
	n.GPUs[1].Bars[0].Pods = []string{"a-0"}
	n.GPUs[0].UUID = "GPU-5d4ce926-d7c7-5db4-903a-b4ee017f7df2"
	r := &renderer{rows: map[string]row{}}
	for q, want := range map[string]string{ // the GPUs of the row; empty for no row
		"": "0 1 2", "gpu-a": "0 1 2", "h100": "0 1 2", "ml-research": "0 1 2", "ns:ml-research": "0 1 2", "ns:ml": "", "is:tainted": "0 1 2", "is:free": "",
		"is:whole h100": "0 1 2", "is:whole l40s": "", "policy:inference": "0 1 2", "xid-79": "0 1 2", "dev/a": "0 1 2", "a-0": "0 1 2", "dev/a-0": "0 1 2",
		"GPU1": "1", "gpu 1": "1", "GPU #1": "1", "gpu10": "", "gpu3": "", "GPU-5d4ce926": "0", "gpu-5d4ce926-d7c7": "0", "gpu-5d": "0 1 2", "gpu1 dev/a-0": "1",
		"gpu0 dev/a-0": "", "gpu0 ml-research": "0",
	} {
		row, ok := r.matching(n, query{words: wordsOf(q)})
		var got []string
		if !ok {
			row.markup = ""
		}
		walk(t, row.markup, func(e *html.Node) {
			if e.Data == "b" && e.Parent.Data == "span" && strings.HasPrefix(e.Parent.Attr[0].Val, "gpu") {
				got = append(got, strings.TrimPrefix(e.FirstChild.Data, "!"))
			}
		})
		if found := strings.Join(got, " "); found != want || ok != (want != "") {
			t.Errorf("%q: %v with GPUs %q, want %q", q, ok, found, want)
		}
	}
}

// The tile counts what its link lists: not nodes that somebody cordoned.
func TestQuery_Problems(t *testing.T) {
	for state, want := range map[string]bool{"": false, inspect.NodeCordoned: false, inspect.NodeNotReady: true, inspect.NodeUnknown: true} {
		n := busyNode("gpu-a", 1)
		n.State = state
		q := query{words: []string{"is:problem"}}
		if got := q.matches(nodeText(n)); got != want || n.HasProblem() != want {
			t.Errorf("%q: got %t, want %t", state, got, want)
		}
	}
}

func TestPalette_Colours(t *testing.T) {
	p := &palette{}
	seen := map[int]bool{}
	for i := range colours {
		seen[p.colour(fmt.Sprintf("namespace-%d", i))] = true
	}
	if len(seen) != colours {
		t.Errorf("%d namespaces have %d colours", colours, len(seen))
	}
	if first, again := p.colour("namespace-3"), p.colour("namespace-3"); first != again {
		t.Errorf("a namespace changed its colour from %d to %d", first, again)
	}
	for namespace, want := range map[string]string{"ml-research": "mr", "dev": "de", "x": "x", "": "", "-": "", "größe": "gr", "öl": "öl", "a.b": "ab"} {
		if got := (&palette{}).initials(namespace); got != want {
			t.Errorf("initials of %q are %q, want %q", namespace, got, want)
		}
	}
	var got []string
	for _, namespace := range []string{"default", "demo", "dev", "d", "de", "dev"} {
		got = append(got, p.initials(namespace))
	}
	if diff := cmp.Diff([]string{"de", "dm", "dv", "d", "d0", "dv"}, got); diff != "" {
		t.Errorf("initials that begin alike (-want +got):\n%s", diff)
	}
}

// Bars are as wide as their parts, none is invisible, and together they are as wide as the GPU.
func TestColumns_Widths(t *testing.T) {
	many := make([]float64, 50)
	for i := range many {
		many[i] = 0.02
	}
	for name, test := range map[string]struct {
		parts []float64
		want  []int
	}{
		"whole":      {[]float64{1}, []int{40}},
		"eighths":    {[]float64{0.125, 0.25, 0.5, 0.125}, []int{5, 10, 20, 5}},
		"75 % used":  {[]float64{0.5, 0.25, 0.25}, []int{20, 10, 10}},
		"thirds":     {[]float64{1. / 3, 1. / 3, 1. / 3}, []int{13, 14, 13}},
		"slivers":    {[]float64{0.001, 0.001, 0.998}, []int{1, 1, 38}},
		"too little": {[]float64{0.3}, []int{40}},
		"none":       {nil, []int{}},
		"too many":   {many, slices.Repeat([]int{1}, 40)},
	} {
		var bars []fleet.Bar
		for _, part := range test.parts {
			bars = append(bars, fleet.Bar{Part: part})
		}
		if diff := cmp.Diff(test.want, columns(bars)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A free GPU is drawn unit by unit, with a line of the style between any two: an H100 has eight units, and none of double width.
func TestNode_GridLines(t *testing.T) {
	for units, want := range map[int][]string{
		1: {"w40"}, 4: {"w10", "w10", "w10", "w10"}, 7: {"w6", "w5", "w6", "w6", "w6", "w5", "w6"}, 8: slices.Repeat([]string{"w5"}, 8),
	} {
		shot := busyShot(1)
		g := &shot.Nodes[0].GPUs[0]
		g.Use, g.Units, g.Bars = fleet.Unused, units, nil
		for range units {
			g.Bars = append(g.Bars, fleet.Bar{Units: 1, Part: 1 / float64(units), State: inspect.SegmentFree, Means: "free"})
		}
		source := newFakeSource(shot)
		source.views["gpu-a"] = busyView("gpu-a")
		var got []string
		walk(t, get(newServer(t, source, Config{}), "/nodes/gpu-a").Body.String(), func(n *html.Node) {
			if n.Data == "i" && attribute(n.Parent, "class") == "map" && strings.HasPrefix(attribute(n.Parent, "aria-label"), "GPU0,") {
				got = append(got, attribute(n, "class"))
			}
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d units (-want +got):\n%s", units, diff)
		}
	}
	style, err := static.ReadFile("static/style.css")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, rule := range regexp.MustCompile(`(?m)^([^{}\n]*\.map i[^{}\n]*) \{([^{}]*)\}`).FindAllStringSubmatch(string(style), -1) {
		for _, d := range strings.Split(rule[2], ";") {
			if d = strings.TrimSpace(d); strings.HasPrefix(d, "border") {
				lines = append(lines, rule[1]+": "+d)
			}
		}
	}
	if diff := cmp.Diff([]string{".bar i, .map i: border-left: 1px solid var(--grid)", ".bar i.a, .map i.a: border-left-color: var(--card)",
		".bar i:first-child, .map i:first-child: border-left: 0"}, lines); diff != "" {
		t.Errorf("lines between units (-want +got):\n%s", diff)
	}
}

// What waits says since when, in UTC, on the list and on its page; app.js makes an age of it. What has its devices does not.
func TestClaims_Age(t *testing.T) {
	const want = "2026-08-24T22:05:00Z 2026-08-24 22:05 UTC: since 2026-08-24 22:05 UTC"
	s := newServer(t, newFakeSource(busyShot(1)), Config{})
	for path, ages := range map[string][]string{
		"/claims": {want, want}, "/claims?q=web": {want}, "/claims?q=is:allocated": nil, "/claims/dev/a": nil, "/claims/ml-research/waits": {want},
		"/claims/ml-research/web-extended-resources": {want},
	} {
		var got []string
		walk(t, get(s, path).Body.String(), func(n *html.Node) {
			if n.Data == "time" && attribute(n, "class") == "age" {
				got = append(got, fmt.Sprintf("%s %s: %s", attribute(n, "datetime"), attribute(n, "title"), n.FirstChild.Data))
			}
		})
		if diff := cmp.Diff(ages, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// attribute is one of an element; empty if it has none of that name.
func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// A claim that does not exist is listed as pending, with what its template asks for, and each has a row and a page of its own.
func TestClaims_Missing(t *testing.T) {
	shot := busyShot(1)
	created := shot.Claims[0].Created
	shot.Claims = append(shot.Claims,
		&fleet.Claim{Namespace: "team", Name: "web-gpu-", Created: created, Version: 1, Pods: []string{"web"}, Missing: true, Template: "one",
			Requests: []fleet.Request{{Name: "gpu", Asks: []string{"mps.cleave.dev"}}}},
		&fleet.Claim{Namespace: "team", Name: "web-typo-", Created: created, Version: 1, Pods: []string{"web"}, Missing: true, Template: "two"},
		&fleet.Claim{Namespace: "team", Name: "shared", Created: created, Version: 1, Pods: []string{"a", "b"}, Missing: true})
	s := newServer(t, newFakeSource(shot), Config{})
	var rows []string
	walk(t, get(s, "/claims?q=is:missing").Body.String(), func(n *html.Node) {
		if n.Data == "li" && strings.HasPrefix(attribute(n, "id"), "claim-") {
			rows = append(rows, attribute(n, "id"))
		}
		if n.Data == "span" && attribute(n, "class") == "asks" && n.FirstChild != nil {
			rows = append(rows, n.FirstChild.Data)
		}
	})
	if diff := cmp.Diff([]string{"claim-team-web-gpu-", "mps.cleave.dev", "claim-team-web-typo-", "ResourceClaimTemplate two", "claim-team-shared"}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	for path, facts := range map[string][]string{
		"/claims/team/web-gpu-":  {"pods: web", "claim: does not exist: it is to be created from ResourceClaimTemplate one", "Requests"},
		"/claims/team/web-typo-": {"pods: web", "claim: does not exist: it is to be created from ResourceClaimTemplate two"},
		"/claims/team/shared":    {"pods: a, b", "claim: does not exist"},
	} {
		var got []string
		walk(t, get(s, path).Body.String(), func(n *html.Node) {
			switch {
			case n.Data == "dt" && slices.Contains([]string{"pods", "claim", "UID"}, n.FirstChild.Data):
				got = append(got, n.FirstChild.Data+": "+n.NextSibling.FirstChild.Data)
			case n.Data == "h2" && n.FirstChild.Data == "Requests":
				got = append(got, "Requests")
			}
		})
		if diff := cmp.Diff(facts, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}
