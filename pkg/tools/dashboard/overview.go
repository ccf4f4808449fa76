// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// drawn are the states of bars without a claim, for the legend.
var drawn = []struct {
	state inspect.SegmentState
	short string
}{
	{inspect.SegmentFree, "free"}, {inspect.SegmentRest, "too little left"}, {inspect.SegmentReady, "ready partition"},
	{inspect.SegmentChanging, "changing partition"}, {inspect.SegmentTainted, "tainted"},
}

// renderer makes pages of snapshots.
type renderer struct {
	source  Source
	palette palette
	reasons *reasons
	figures *figures
	driver  string

	mu   sync.Mutex
	rows map[string]row // by node
}

// overview is the first page: a row for each node.
func (r *renderer) overview(shot *fleet.Snapshot, q query) *page {
	legend := r.legend(shot) // gives colours in order of names
	r.prune(shot.Nodes)
	var rows []fragment
	total := 0
	for _, n := range shot.Nodes {
		row, ok := r.matching(n, q)
		if !ok {
			continue
		}
		if q.shows(total) {
			rows = append(rows, row.fragment)
		}
		total++
	}
	return &page{title: "Nodes", section: "Nodes", root: "./", parts: []part{
		one("notices", 0, notices(shot)),
		one("totals", 0, totals(&shot.Totals)),
		{fixed: filterForm(q.text, "Filter nodes, GPU3, UUIDs, pods, claims")},
		one("legend", 0, legend),
		one("count", 0, el("p", class("count"), attr{"role", "status"}, count(total, len(shot.Nodes), "node", "nodes"), inClaims(q))),
		{list: &list{id: "nodes", items: rows}, frame: func(items []*html.Node, id string) *html.Node {
			return el("ul", attr{"id", id}, class("rows"), attr{"aria-label", "Nodes"}, items)
		}},
		one("pager", 0, pager(q, total)),
	}}
}

// inClaims leads to the claims with the same words: what waits is on no node.
func inClaims(q query) []any {
	if q.text == "" {
		return nil
	}
	return []any{" · ", el("a", attr{"href", "claims?" + url.Values{"q": {q.text}}.Encode()}, "claims with these words")}
}

func count(n, of int, one, many string) string {
	noun := many
	if of == 1 {
		noun = one
	}
	switch {
	case of == 0:
		return "No " + many + " yet."
	case n == of:
		return fmt.Sprintf("%d %s", of, noun)
	default:
		return fmt.Sprintf("%d of %d %s", n, of, noun)
	}
}

// prune forgets rows of nodes that are gone.
func (r *renderer) prune(nodes []*fleet.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rows) <= len(nodes) {
		return
	}
	have := map[string]bool{}
	for _, n := range nodes {
		have[n.Name] = true
	}
	maps.DeleteFunc(r.rows, func(name string, _ row) bool { return !have[name] })
}

// totals are tiles above the list.
func totals(t *fleet.Totals) *html.Node {
	n := el("dl", class("totals"))
	tile := func(name string, value int, filter, kind string) {
		v := any(strconv.Itoa(value))
		if filter != "" && value > 0 {
			v = el("a", attr{"href", filter}, strconv.Itoa(value))
		}
		n.AppendChild(el("div", class("tile", kind), el("dt", name), el("dd", v)))
	}
	alarm := func(n int) string {
		if n > 0 {
			return "alarm"
		}
		return ""
	}
	tile("nodes", t.Nodes, "./", "")
	tile("GPUs", t.GPUs, "", "")
	tile("free", t.Unused, "?q=is:free", "")
	tile("whole", t.Whole, "?q=is:whole", "")
	tile("partitioned", t.Partitioned, "?q=is:partitioned", "")
	tile("shared", t.Shared, "?q=is:shared", "")
	tile("tainted", t.Tainted, "?q=is:tainted", alarm(t.Tainted))
	tile("problems", t.Problems, "?q=is:problem", alarm(t.Problems))
	tile("claims pending", t.Pending, "claims?q=is:pending", alarm(t.Pending))
	free := "nothing"
	if len(t.Free) > 0 {
		free = amounts(t.Free, 12)
	}
	return el("section", class("summary"), attr{"aria-label", "Totals"}, n,
		el("p", class("shapes"), el("strong", "Free shapes "), free),
		el("p", class("shapes"), attr{"title", fragmentationMeans}, el("strong", "Fragmentation "), percent(t.Fragmentation)))
}

// legend explains bars and colours.
func (r *renderer) legend(shot *fleet.Snapshot) *html.Node {
	all := map[string]int{}
	for _, c := range shot.Claims {
		if c.Allocated {
			all[c.Namespace] += len(c.Devices)
		}
	}
	n := el("p", class("legend"), attr{"aria-label", "Legend"})
	for _, d := range drawn {
		n.AppendChild(el("span", attr{"title", d.state.String()},
			el("i", class(barClasses("", d.state, mapWidth)...), stateSign[d.state]), " "+d.short))
	}
	names := slices.Sorted(maps.Keys(all))
	const most = 24 // further namespaces have bars in their colours, too
	for i, name := range names {
		if i == most {
			n.AppendChild(el("span", fmt.Sprintf("and %d namespaces more", len(names)-most)))
			break
		}
		n.AppendChild(el("a", attr{"href", "./?" + url.Values{"q": {"ns:" + name}}.Encode()}, attr{"title", fmt.Sprintf("%d devices", all[name])},
			r.chip(name), " "+name))
	}
	return n
}
