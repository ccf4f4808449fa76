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
)

// row is a node's, with the texts that the filter searches: the node's, and those of its GPUs.
type row struct {
	fragment
	node string
	gpus []string
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
	texts := make([]string, 0, len(n.GPUs))
	for i := range n.GPUs {
		maps.AppendChild(r.miniMap(&n.GPUs[i]))
		texts = append(texts, gpuText(&n.GPUs[i]))
	}
	r.rows[n.Name] = row{fragment{rowID(n), markup(nodeRow(n, maps)), n.Version}, nodeText(n), texts}
	return r.rows[n.Name]
}

func rowID(n *fleet.Node) string { return "node-" + n.Name }

func nodeRow(n *fleet.Node, maps *html.Node) *html.Node {
	return el("li", attr{"id", rowID(n)}, class("row"),
		el("span", class("name"), el("a", attr{"href", nodePath(n.Name)}, n.Name), el("small", products(n)), badges(n)),
		maps,
		el("span", class("free"), attr{"title", "free: " + freeOf(n, len(n.Free))},
			el("span", "free: "+freeOf(n, 2)), fragmented(n)))
}

// matching is a node's row if it has all words of a query. Where these name a GPU, it shows such GPUs alone, with who has them in words.
func (r *renderer) matching(n *fleet.Node, q query) (row, bool) {
	have := r.row(n)
	if !q.ofGPU() {
		return have, q.matches(have.node + "\n" + strings.Join(have.gpus, "\n"))
	}
	maps := el("span", class("gpus", "named"))
	for i := range n.GPUs {
		if q.matches(have.node + "\n" + have.gpus[i]) {
			maps.AppendChild(r.miniMap(&n.GPUs[i]))
			maps.AppendChild(el("span", class("uses"), r.uses(&n.GPUs[i])))
		}
	}
	if maps.FirstChild == nil {
		return row{}, false
	}
	have.markup = markup(nodeRow(n, maps))
	return have, true
}

// uses says in words who has a GPU.
func (r *renderer) uses(g *fleet.GPU) []*html.Node {
	var all []*html.Node
	for i := range g.Bars {
		b := &g.Bars[i]
		if b.Claim == "" {
			continue
		}
		text := " " + b.Label + strings.TrimPrefix(barText(b), b.Claim)
		all = append(all, el("span", r.claimLink(b.Claim, "./"), text))
	}
	if all == nil {
		all = append(all, el("span", "nobody; free: "+g.Free))
	}
	return all
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

// nodeText is what the filter finds a node by.
func nodeText(n *fleet.Node) string {
	words := append([]string{n.Name, n.State, n.Policy}, n.Problems...)
	if n.Policy != "" {
		words = append(words, "policy:"+n.Policy)
	}
	if n.HasProblem() {
		words = append(words, "is:problem")
	}
	return strings.ToLower(strings.Join(words, "\n"))
}

// gpuText is what the filter finds a GPU by.
func gpuText(g *fleet.GPU) string {
	words := []string{g.Name, g.Product, g.Device, g.UUID, "is:" + string(g.Use)}
	if g.Use == fleet.Unused {
		words = append(words, "is:free")
	}
	for _, t := range g.Taints {
		words = append(words, taintText(t), "is:tainted")
	}
	for i := range g.Bars {
		b := &g.Bars[i]
		if b.Claim == "" {
			continue
		}
		words = append(words, b.Label, b.Claim, "ns:"+b.Namespace())
		for _, pod := range b.Pods {
			words = append(words, b.Namespace()+"/"+pod)
		}
	}
	return strings.ToLower(strings.Join(words, "\n"))
}
