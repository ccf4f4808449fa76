// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// nodePage is a node with all that its slices and claims say.
func (r *renderer) nodePage(shot *fleet.Snapshot, name string) (*page, error) {
	at, found := slices.BinarySearchFunc(shot.Nodes, name, func(n *fleet.Node, name string) int { return strings.Compare(n.Name, name) })
	if !found {
		return nil, fmt.Errorf("no node %q with GPUs of this driver: %w", name, fleet.ErrUnknown)
	}
	n := shot.Nodes[at]
	p := &page{title: name, section: "Nodes", root: "../", parts: []part{one("notices", 0, r.figures.notices(shot))}}
	view, err := r.source.View(name)
	if err != nil { // the pool is being published: n says so
		p.parts = append(p.parts, one("node", n.Version, nodeHead(n, nil)))
		return p, nil //nolint:nilerr // the page shows it
	}
	p.parts = append(p.parts, one("node", n.Version, nodeHead(n, view)))
	gpus := &list{id: "gpus"}
	for i := range view.GPUs {
		section := r.gpuSection(&view.GPUs[i], n)
		section.Attr = append(section.Attr, html.Attribute{Key: "id", Val: "gpu-" + view.GPUs[i].Device})
		gpus.items = append(gpus.items, fragment{"gpu-" + view.GPUs[i].Device, markup(section), r.figures.version(n.Version)})
	}
	p.parts = append(p.parts, part{list: gpus}, one("topology", 0, topology(view)))
	return p, nil
}

// fact is a row of a list of facts; without a value it is left out.
func fact(list *html.Node, name string, value any) {
	if value == "" {
		return
	}
	list.AppendChild(el("div", el("dt", name), el("dd", value)))
}

func nodeHead(n *fleet.Node, v *inspect.View) *html.Node {
	head := el("section", el("h1", n.Name, " ", badges(n)))
	facts := el("dl", class("facts"))
	fact(facts, "GPUs", products(n))
	fact(facts, "policy", cmp.Or(n.Policy, "default"))
	if v != nil {
		fact(facts, "driver", v.DriverVersion)
		fact(facts, "CUDA", v.CUDAVersion)
	}
	fact(facts, "taints", strings.Join(n.Taints, ", "))
	fact(facts, "free", freeOf(n, 20))
	if n.Fragmentation > 0 {
		fact(facts, "fragmentation", percent(n.Fragmentation))
	}
	head.AppendChild(facts)
	for _, problem := range n.Problems {
		head.AppendChild(el("p", class("notice"), problem))
	}
	return head
}

// gpuSection is one GPU of a node. One that nothing is to be said of is folded.
func (r *renderer) gpuSection(g *inspect.GPU, n *fleet.Node) *html.Node {
	free, use := g.FreeText(), fleet.Use("")
	var bars *html.Node
	if i := slices.IndexFunc(n.GPUs, func(r fleet.GPU) bool { return r.Device == g.Device }); i >= 0 {
		bars, free, use = r.bigMap(&n.GPUs[i]), n.GPUs[i].Free, n.GPUs[i].Use
	}
	allocated, taints := r.allocations(g), taintList(g)
	fold := use == fleet.Unused && allocated == nil && taints == nil
	section, head := el("section", class("gpu-card")), el("h2", g.Name, " ", el("small", g.Product))
	if fold {
		section = el("details", class("gpu-card"))
		head = el("summary", el("h2", g.Name, " ", el("small", "free: "+free)))
	}
	add(section, []any{head, taints, bars, allocated})
	facts := el("dl", class("facts"))
	fact(facts, "free", free)
	fact(facts, "device", g.Device)
	fact(facts, "PCI", g.PCIAddress)
	fact(facts, "UUID", g.UUID)
	if fold {
		fact(facts, "product", g.Product)
	}
	if g.MemoryBytes > 0 {
		fact(facts, "memory", fmt.Sprintf("%.1f GiB", float64(g.MemoryBytes)/(1<<30)))
	}
	fact(facts, "MIG", g.MIG)
	if g.NUMANode != nil {
		fact(facts, "NUMA", strconv.Itoa(*g.NUMANode))
	}
	if g.NVLinks != nil && *g.NVLinks > 0 {
		fact(facts, "NVLinks", strconv.Itoa(*g.NVLinks))
	}
	section.AppendChild(facts)
	for _, note := range g.Notes {
		section.AppendChild(el("p", class("note"), note))
	}
	return section
}

// bigMap is a slice map with names. Units that are free have a line each.
func (r *renderer) bigMap(g *fleet.GPU) *html.Node {
	n := el("div", class("map"), attr{"role", "img"}, attr{"aria-label", gpuLabel(g)})
	for i, width := range columns(g.Bars) {
		b := &g.Bars[i]
		var text any = el("small", stateSign[b.State]+" "+b.Label)
		if b.Claim != "" {
			text = []any{el("span", el("b", r.palette.initials(b.Namespace())), el("em", user(b))), el("small", b.Label)}
		} else if b.State == inspect.SegmentRest {
			text = el("small", "full")
		}
		n.AppendChild(el("i", class(barClasses(r.palette.class(b.Namespace()), b.State, width)...), attr{"title", barTitle(b)}, text))
	}
	return n
}

// barTitle says all that is known of a bar.
func barTitle(b *fleet.Bar) string {
	if b.Claim == "" {
		return strings.TrimSpace(b.Label + " " + b.Means)
	}
	return b.Label + " " + barText(b)
}

// allocations are the claims on a GPU; nil without any.
func (r *renderer) allocations(g *inspect.GPU) *html.Node {
	var rows [][]any
	add := func(shape, device, state string, c *inspect.Claim) {
		cells := []any{shape, state, "–", "", "", ""}
		if c != nil {
			used := r.figures.usedOf(c.Claim, device).String()
			cells = []any{shape, state, r.claimLink(c.Claim, "../"), strings.Join(c.Pods, ", "), used, c.Details()}
		}
		rows = append(rows, cells)
	}
	for i := range g.Shapes {
		shape := &g.Shapes[i]
		for j := range shape.Claims {
			state := "allocated"
			if shape.Claims[j].AdminAccess {
				state = "admin access"
			}
			add(shape.String(), shape.Device, state, &shape.Claims[j])
		}
	}
	for i := range g.Partitions {
		if part := &g.Partitions[i]; len(part.Claims) == 0 {
			add(part.Profile+" at "+strconv.Itoa(part.Placement.Start), "", part.State.String(), nil)
		}
	}
	if rows == nil {
		return nil
	}
	return table([]string{"Shape", "State", "Claim", "Pods", "Uses", "Details"}, rows)
}

// table has a row for each of rows, and leaves out columns without content. On a narrow screen each cell is a line with the name of its
// column; one without content is left out.
func table(header []string, rows [][]any) *html.Node {
	head := el("tr")
	empty := func(i int) bool { return !slices.ContainsFunc(rows, func(cells []any) bool { return cells[i] != "" }) }
	for i, h := range header {
		if !empty(i) {
			head.AppendChild(el("th", attr{"scope", "col"}, h))
		}
	}
	body := el("tbody")
	for _, cells := range rows {
		row := el("tr")
		for i, cell := range cells {
			if !empty(i) {
				row.AppendChild(el("td", attr{"data-label", header[i]}, cell))
			}
		}
		body.AppendChild(row)
	}
	return el("div", class("scroll"), el("table", class("cells"), el("thead", head), body))
}

// claimLink names a claim with the colour and initials of its namespace.
func (r *renderer) claimLink(key, root string) *html.Node {
	namespace, name, _ := strings.Cut(key, "/")
	return el("a", class("claim"), attr{"href", root + claimPath(namespace, name)},
		r.chip(namespace), " "+key)
}

// chip is a namespace's colour and letters.
func (r *renderer) chip(namespace string) *html.Node {
	return el("i", class("chip", "a", r.palette.class(namespace)), attr{"aria-hidden", "true"}, r.palette.initials(namespace))
}

// taintList has each taint of a GPU with its meaning, and how many devices it closes.
func taintList(g *inspect.GPU) *html.Node {
	var order []inspect.Taint
	devices := map[inspect.Taint]int{}
	for i := range g.Shapes {
		for _, t := range g.Shapes[i].Taints {
			if devices[t] == 0 {
				order = append(order, t)
			}
			devices[t]++
		}
	}
	if order == nil {
		return nil
	}
	ul := el("ul", class("taints"))
	for _, t := range order {
		on := fmt.Sprintf(" on %d of %d devices: ", devices[t], len(g.Shapes))
		ul.AppendChild(el("li", el("strong", "! "+taintText(t)+":"+t.Effect), on, t.Meaning))
	}
	return ul
}

// topology is the matrix of nvidia-smi topo -m.
func topology(v *inspect.View) *html.Node {
	section := el("section")
	if len(v.GPUs) < 2 {
		return section
	}
	head, body := el("tr", el("td")), el("tbody")
	for i := range v.GPUs {
		head.AppendChild(el("th", attr{"scope", "col"}, gpuNumber(v.GPUs[i].Name)))
		row := el("tr", el("th", attr{"scope", "row"}, gpuNumber(v.GPUs[i].Name)))
		for _, word := range v.Connections[i] {
			row.AppendChild(el("td", word))
		}
		body.AppendChild(row)
	}
	matrix := el("table", class("matrix"), el("thead", head), body)
	add(section, []any{el("h2", "Topology"), el("div", class("scroll"), attr{"tabindex", "0"}, attr{"role", "region"},
		attr{"aria-label", "Topology"}, matrix)})
	return section
}

// gpuNumber is "GPU3", of which a phone shows the number.
func gpuNumber(name string) []any {
	number, ok := strings.CutPrefix(name, "GPU")
	if !ok {
		return []any{name}
	}
	return []any{el("span", class("wide"), "GPU"), number}
}
