// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// drawn are the states of bars without a claim, for the legend.
var drawn = []inspect.SegmentState{inspect.SegmentFree, inspect.SegmentReady, inspect.SegmentChanging, inspect.SegmentTainted}

// renderer makes pages of snapshots.
type renderer struct {
	source  Source
	palette palette
	reasons *reasons

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
		row := r.row(n)
		if !q.matches(row.search) {
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
		{fixed: filterForm(q.text, "Filter nodes, products, namespaces, claims")},
		one("legend", 0, legend),
		one("count", 0, el("p", class("count"), attr{"role", "status"}, count(total, len(shot.Nodes), "node", "nodes"))),
		{list: &list{id: "nodes", items: rows}, frame: func(items []*html.Node, id string) *html.Node {
			return el("ul", attr{"id", id}, class("rows"), attr{"aria-label", "Nodes"}, items)
		}},
		one("pager", 0, pager(q, total)),
	}}
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

// row is a node's, with the text that the filter searches.
type row struct {
	fragment
	search string
}

// row renders a node, once for each change.
func (r *renderer) row(n *fleet.Node) row {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, ok := r.rows[n.Name]
	if ok && have.version == n.Version {
		return have
	}
	maps := el("span", class("gpus"))
	for i := range n.GPUs {
		maps.AppendChild(r.miniMap(&n.GPUs[i]))
	}
	id := "node-" + n.Name
	li := el("li", attr{"id", id}, class("row"),
		el("span", class("name"), el("a", attr{"href", nodePath(n.Name)}, n.Name), el("small", products(n))),
		maps,
		el("span", class("free"), badges(n), "free: "+freeOf(n, 4)+" ", fragmented(n)))
	r.rows[n.Name] = row{fragment{id, markup(li), n.Version}, searchText(n)}
	return r.rows[n.Name]
}

// products of a node: "8 NVIDIA H100".
func products(n *fleet.Node) string {
	var order []string
	counts := map[string]int{}
	for i := range n.GPUs {
		name := strings.TrimPrefix(n.GPUs[i].Product, "NVIDIA ")
		if name == "" {
			name = "GPU"
		}
		if counts[name] == 0 {
			order = append(order, name)
		}
		counts[name]++
	}
	var parts []string
	for _, name := range order {
		parts = append(parts, strconv.Itoa(counts[name])+" × "+name)
	}
	return strings.Join(parts, ", ")
}

// freeOf lists the devices that the next claims can get, limited to so many kinds.
func freeOf(n *fleet.Node, most int) string {
	if n.State != "" {
		return "nothing: the node takes no pods"
	}
	return cmp.Or(amounts(n.Free, most), "nothing")
}

// fragmented is the share of the free units that cannot be allocated as whole GPUs; nil for none.
func fragmented(n *fleet.Node) *html.Node {
	if n.Fragmentation == 0 {
		return nil
	}
	return el("small", attr{"title", fragmentationMeans}, "fragmented "+percent(n.Fragmentation))
}

// fragmentationMeans explains the number.
const fragmentationMeans = "the part of what is free that lies on GPUs in use, and cannot be allocated as whole GPUs"

func percent(part float64) string { return strconv.FormatFloat(100*part, 'f', 0, 64) + " %" }

// badges are the node's problems.
func badges(n *fleet.Node) *html.Node {
	b := el("span", class("badges"))
	badge := func(text, why string) {
		b.AppendChild(el("span", class("badge"), attr{"title", why}, text))
	}
	if n.State != "" {
		badge(n.State, "state of the Node")
	}
	if len(n.Problems) > 0 {
		badge("problem", strings.Join(n.Problems, "; "))
	}
	tainted, why := 0, []string{}
	for i := range n.GPUs {
		if len(n.GPUs[i].Taints) > 0 {
			tainted++
		}
		for _, t := range n.GPUs[i].Taints {
			if text := taintText(t); !slices.Contains(why, text) {
				why = append(why, text)
			}
		}
	}
	if tainted > 0 {
		badge(fmt.Sprintf("%d tainted", tainted), strings.Join(why, ", "))
	}
	return b
}

// searchText is the text that the filter searches.
func searchText(n *fleet.Node) string {
	words := append([]string{n.Name, n.State, n.Policy}, n.Problems...)
	if n.Policy != "" {
		words = append(words, "policy:"+n.Policy)
	}
	if n.HasProblem() {
		words = append(words, "is:problem")
	}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		words = append(words, g.Product, g.Device, "is:"+string(g.Use))
		if g.Use == fleet.Unused {
			words = append(words, "is:free")
		}
		for _, t := range g.Taints {
			words = append(words, taintText(t), "is:tainted")
		}
		for _, b := range g.Bars {
			if b.Claim != "" {
				words = append(words, b.Label, b.Claim, "ns:"+b.Namespace())
			}
		}
	}
	return strings.ToLower(strings.Join(words, "\n"))
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
	for _, state := range drawn {
		n.AppendChild(el("span", el("i", class(barClasses("", state, 1, 1)...), stateSign[state]), " "+state.String()))
	}
	names := slices.Sorted(maps.Keys(all))
	const most = 24 // further namespaces have bars in their colours, too
	for i, name := range names {
		if i == most {
			n.AppendChild(el("span", fmt.Sprintf("and %d namespaces more", len(names)-most)))
			break
		}
		n.AppendChild(el("a", attr{"href", "./?" + url.Values{"q": {"ns:" + name}}.Encode()}, attr{"title", fmt.Sprintf("%d devices", all[name])},
			el("i", class("w1", "a", r.palette.class(name)), initials(name)), " "+name))
	}
	return n
}
