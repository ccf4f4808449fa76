// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// grouped maps texts, in order of their first GPU, to the positions of their GPUs.
type grouped struct {
	texts []string
	gpus  map[string][]int
}

func (g *grouped) add(text string, gpu int) {
	if g.gpus == nil {
		g.gpus = map[string][]int{}
	}
	if len(g.gpus[text]) == 0 {
		g.texts = append(g.texts, text)
	}
	g.gpus[text] = append(g.gpus[text], gpu)
}

// names lists the GPUs at positions: "GPU0 to GPU3, GPU7".
func (p *printer) names(positions []int) string {
	gpus := p.view.GPUs
	if len(positions) == len(gpus) && len(gpus) > 1 {
		return "all GPUs"
	}
	var names []string
	for i := 0; i < len(positions); {
		last := i
		for last+1 < len(positions) && positions[last+1] == positions[last]+1 {
			last++
		}
		switch first, end := gpus[positions[i]].Name, gpus[positions[last]].Name; last - i {
		case 0:
			names = append(names, first)
		case 1:
			names = append(names, first, end)
		default:
			names = append(names, first+" to "+end)
		}
		i = last + 1
	}
	return strings.Join(names, ", ")
}

// notes prints what GPUs offer, and why not more.
func (p *printer) notes() {
	var offers, notes grouped
	for i := range p.view.GPUs {
		g := &p.view.GPUs[i]
		offers.add(g.offersText(), i)
		for _, note := range g.Notes {
			notes.add(note, i)
		}
	}
	if len(offers.texts) == 0 {
		return
	}
	by := ""
	if p.view.Policy != "" {
		by = ", by policy " + p.view.Policy
	}
	p.section("Offers without allocations" + by + ":")
	for _, text := range offers.texts {
		p.linef("  %s: %s", p.names(offers.gpus[text]), text)
	}
	if len(notes.texts) > 0 {
		p.section("Notes:")
	}
	for _, text := range notes.texts {
		p.linef("  %s: %s", p.names(notes.gpus[text]), text)
	}
}

// offersText summarises the GPU's offer; counts of partitions are per profile.
func (g *GPU) offersText() string {
	var offers, profiles []string
	for _, a := range g.Offers {
		if a.Type == typeMIG {
			profiles = append(profiles, fmt.Sprintf("%dx %s", a.Count, a.Profile))
		} else {
			offers = append(offers, a.String())
		}
	}
	if len(profiles) > 0 {
		how := map[policy.MIGMode]string{policy.Layout: "partitions by layout: ", policy.Existing: "existing partitions: "}[g.PartitionMode]
		if how == "" {
			how = "partitions, up to "
		}
		offers = append(offers, how+strings.Join(profiles, ", "))
	}
	if len(offers) == 0 {
		return "nothing"
	}
	return strings.Join(offers, ", or ")
}

// taints prints a line for each GPU and taint.
func (p *printer) taints() {
	rows := [][]string{{"GPU", "TAINT", "ON", "MEANING"}}
	for i := range p.view.GPUs {
		g := &p.view.GPUs[i]
		type key struct{ taint, meaning string }
		var order []key
		devices := map[key][]string{}
		for j := range g.Shapes {
			s := &g.Shapes[j]
			for _, t := range s.Taints {
				k := key{t.Key + ":" + t.Effect, t.Meaning}
				if t.Value != "" {
					k.taint = t.Key + "=" + t.Value + ":" + t.Effect
				}
				if len(devices[k]) == 0 {
					order = append(order, k)
				}
				devices[k] = append(devices[k], s.String())
			}
		}
		for _, k := range order {
			on := fmt.Sprintf("%d of %d devices", len(devices[k]), len(g.Shapes))
			if len(devices[k]) == 1 {
				on = devices[k][0]
			}
			rows = append(rows, []string{g.Name, k.taint, on, k.meaning})
		}
	}
	if len(rows) > 1 {
		p.linef("")
		p.table(rows)
	}
}

// legend explains the words of the matrix, in order.
var legend = []struct{ word, means string }{
	{string(gpu.SameGPU), "itself"},
	{string(gpu.ByNVLink) + "#", "# NVLinks, direct or through NVSwitches"},
	{string(gpu.ByNVLink), "NVLink; the slices do not publish the number of links"},
	{string(gpu.BySwitch), "one PCIe bridge or switch"},
	{string(gpu.BySwitches), "several PCIe switches, not the CPU's root complex"},
	{string(gpu.ByRoot), "a PCIe root complex of the CPU"},
	{atMostRoot, "PHB or nearer; the slices do not publish which"},
	{string(gpu.ByNode), "several root complexes of one NUMA node"},
	{atMostNode, "NODE or nearer; the slices do not publish which"},
	{string(gpu.BySystem), "from one NUMA node to another"},
	{string(gpu.UnknownWay), "unknown"},
}

// topology prints the matrix of nvidia-smi topo -m.
func (p *printer) topology() {
	v := p.view
	if len(v.GPUs) == 0 {
		return
	}
	header := []string{""}
	for i := range v.GPUs {
		header = append(header, v.GPUs[i].Name)
	}
	rows := [][]string{append(header, "CPU Affinity", "NUMA Affinity")}
	used := map[string]bool{}
	for i := range v.GPUs {
		g := &v.GPUs[i]
		row := []string{g.Name}
		for _, word := range v.Connections[i] {
			if links, found := strings.CutPrefix(word, string(gpu.ByNVLink)); found && links != "" {
				used[string(gpu.ByNVLink)+"#"] = true
			}
			used[word] = true
			if word == string(gpu.SameGPU) {
				word = " " + word
			}
			row = append(row, word)
		}
		node := "-"
		if g.NUMANode != nil {
			node = fmt.Sprint(*g.NUMANode)
		}
		rows = append(rows, append(row, orDash(g.CPUAffinity), node))
	}
	p.section("Topology (GPUs by NVML index, as nvidia-smi topo -m):")
	p.table(rows)
	for _, l := range legend {
		if used[l.word] && l.word != string(gpu.SameGPU) {
			p.linef("  %-6s %s", l.word, l.means)
		}
	}
	nowhere := func(g GPU) bool { return g.PCIeRoot == "" }
	if v.Source == Machine && slices.ContainsFunc(v.GPUs, nowhere) {
		p.linef("  sysfs does not show the PCI position of each GPU: a virtual machine hides it, or --sysfs belongs to another node")
	}
}

func (p *printer) shapes() {
	rows := [][]string{{"GPU", "DEVICE", "SHAPE", "STATE", "CLAIM"}}
	for i := range p.view.GPUs {
		g := &p.view.GPUs[i]
		for j := range g.Shapes {
			s := &g.Shapes[j]
			var by []string
			for _, h := range s.Claims {
				name := h.Claim
				if h.AdminAccess {
					name += " (" + stateOf(h) + ")"
				}
				by = append(by, name)
			}
			state := string(s.State)
			if s.State == Allocated {
				state = "allocated"
			}
			rows = append(rows, []string{g.Name, s.Device, s.String(), state, orDash(strings.Join(by, ", "))})
		}
	}
	if len(rows) > 1 {
		p.section("Shapes, in order of the scheduler's search on each GPU:")
		p.table(rows)
	}
}
