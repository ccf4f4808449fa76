// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

// mostReasons is for how many pending claims a list says why.
const mostReasons = 30

// claimsPage lists claims, those first that wait.
func (r *renderer) claimsPage(shot *fleet.Snapshot, q query) *page {
	var shown []*fleet.Claim
	for _, pending := range []bool{true, false} {
		for _, c := range shot.Claims {
			if c.Allocated != pending && q.matches(r.claimText(shot, c)) {
				shown = append(shown, c)
			}
		}
	}
	rows := &list{id: "claims"}
	for i, c := range shown {
		if !q.shows(i) {
			continue
		}
		id := "claim-" + c.Namespace + "-" + cmp.Or(c.UID, c.Name)
		row, version := r.claimRow(shot, id, c), r.figures.version(c.Version)
		if !c.Allocated && i < mostReasons {
			row.AppendChild(el("p", class("why"), r.why(c.Key(), shot.Version)))
			version = 0 // the reason may change
		}
		rows.items = append(rows.items, fragment{id, markup(row), version})
	}
	return &page{title: "Claims", section: "Claims", root: "./", parts: []part{
		one("notices", 0, r.figures.notices(shot)),
		{fixed: filterForm(q.text, "Filter claims, namespaces, classes, nodes, pods", el("a", attr{"href", "?q=is:pending"}, "pending"))},
		one("count", 0, el("p", class("count"), attr{"role", "status"}, count(len(shown), len(shot.Claims), "claim", "claims"))),
		{list: rows, frame: func(items []*html.Node, id string) *html.Node {
			return el("ul", attr{"id", id}, class("rows"), attr{"aria-label", "Claims"}, items)
		}},
		one("pager", 0, pager(q, len(shown))),
	}}
}

// states of claims, for people.
func claimState(c *fleet.Claim) string {
	switch {
	case c.Deleting:
		return "deleting"
	case c.Allocated:
		return "allocated"
	default:
		return "pending"
	}
}

// claimText is the text that the filter searches.
func (r *renderer) claimText(shot *fleet.Snapshot, c *fleet.Claim) string {
	words := []string{c.Key(), "ns:" + c.Namespace, "is:" + claimState(c)}
	if !c.Allocated {
		words = append(words, "is:pending")
	}
	if c.ExtendedResources {
		words = append(words, "is:extended")
	}
	if c.Missing {
		words = append(words, "is:missing")
	}
	if _, idle := r.figures.idleSince(c); idle {
		words = append(words, "is:idle")
	}
	for _, request := range c.Requests {
		words = append(words, request.Asks...)
	}
	for i := range c.Devices {
		d := &c.Devices[i]
		words = append(words, d.Node, d.Device, d.UUID, gpuName(shot, d))
	}
	for _, pod := range c.Pods {
		words = append(words, c.Namespace+"/"+pod)
	}
	return strings.ToLower(strings.Join(words, "\n"))
}

func (r *renderer) claimRow(shot *fleet.Snapshot, id string, c *fleet.Claim) *html.Node {
	where := el("span", class("where"))
	for i := range c.Devices {
		d := &c.Devices[i]
		if i == 4 {
			where.AppendChild(el("span", fmt.Sprintf("and %d more", len(c.Devices)-i)))
			break
		}
		if i == 0 || c.Devices[i-1].Node != d.Node {
			where.AppendChild(el("a", attr{"href", nodePath(d.Node)}, d.Node))
		}
		where.AppendChild(el("span", attr{"title", d.Device}, deviceText(shot, d)))
	}
	state := claimState(c)
	if !c.Allocated {
		add(where, []any{el("span", "waits for ", since(c.Created))})
	}
	badges := el("span", class("badges"), el("span", class("badge", "state-"+state), state))
	if at, idle := r.figures.idleSince(c); idle {
		badges.AppendChild(el("span", class("badge"), "idle ", since(at)))
	}
	return el("li", attr{"id", id}, class("row", "claim-row", "is-"+state),
		el("span", class("name"), r.claimLink(c.Key(), "./"), el("small", podsText(c))),
		el("span", class("asks"), asks(c)),
		where, badges)
}

// deviceText is GPU3, or GPU3 with the part of it: "GPU3 mig-19-0".
func deviceText(shot *fleet.Snapshot, d *fleet.Device) string {
	name := gpuName(shot, d)
	if name == "" {
		return d.Device
	}
	if parts := strings.SplitN(d.Device, "-", 6); len(parts) == 6 {
		return name + " " + parts[5]
	}
	return name
}

func podsText(c *fleet.Claim) string {
	switch {
	case len(c.Pods) == 1:
		return "pod " + c.Pods[0]
	case len(c.Pods) > 1:
		return "pods " + strings.Join(c.Pods, ", ")
	case c.Allocated:
		return "no pod uses it"
	default:
		return "no pod is known to wait for it"
	}
}

// since is a time, which app.js shows as an age. In the markup it does not change, so that pages get it once.
func since(t time.Time) *html.Node {
	text := t.Format("2006-01-02 15:04 UTC")
	return el("time", class("age"), attr{"datetime", t.Format(time.RFC3339)}, attr{"title", text}, "since "+text)
}

// asks describes the requests of a claim.
func asks(c *fleet.Claim) string {
	var parts []string
	for _, request := range c.Requests {
		parts = append(parts, strings.Join(request.Asks, " or "))
	}
	if parts == nil && c.Template != "" {
		return "ResourceClaimTemplate " + c.Template
	}
	return strings.Join(parts, ", ")
}

func findClaim(shot *fleet.Snapshot, namespace, name string) (*fleet.Claim, error) {
	i := slices.IndexFunc(shot.Claims, func(c *fleet.Claim) bool { return c.Namespace == namespace && c.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no claim %q in namespace %q for devices of this driver: %w", name, namespace, fleet.ErrUnknown)
	}
	return shot.Claims[i], nil
}

// claimPage shows a claim: its requests, its devices, or why it waits.
func (r *renderer) claimPage(shot *fleet.Snapshot, namespace, name string) (*page, error) {
	c, err := findClaim(shot, namespace, name)
	if err != nil {
		return nil, err
	}
	p := &page{title: c.Key(), section: "Claims", root: "../../", parts: []part{
		one("notices", 0, r.figures.notices(shot)),
		one("claim", r.figures.version(c.Version), r.claimHead(shot, c)),
	}}
	if !c.Allocated {
		p.parts = append(p.parts, one("explanation", 0, r.explanation(c.Key(), shot.Version)))
	} else {
		p.parts = append(p.parts, one("explanation", 0, el("div"))) // it was here while the claim waited
	}
	return p, nil
}

func (r *renderer) claimHead(shot *fleet.Snapshot, c *fleet.Claim) *html.Node {
	state := claimState(c)
	head := el("section", el("h1", r.chip(c.Namespace), " "+c.Key()+" ", el("span", class("badge", "state-"+state), state)))
	facts := el("dl", class("facts"))
	fact(facts, "pods", cmp.Or(strings.Join(c.Pods, ", "), podsText(c)))
	if c.ExtendedResources {
		fact(facts, "claim", "does not exist yet: the scheduler creates it for the pod's extended resources once they fit")
	}
	switch {
	case c.Template != "":
		fact(facts, "claim", "does not exist: it is to be created from ResourceClaimTemplate "+c.Template)
	case c.Missing:
		fact(facts, "claim", "does not exist")
	}
	if !c.Allocated {
		fact(facts, "waits for", since(c.Created))
	}
	fact(facts, "created", c.Created.Format(time.DateTime)+" UTC")
	if c.UID != "" {
		fact(facts, "UID", c.UID)
	}
	head.AppendChild(facts)
	var requests, devices [][]any
	for _, request := range c.Requests {
		requests = append(requests, []any{request.Name, strings.Join(request.Asks, ", or ")})
	}
	for i := range c.Devices {
		d := &c.Devices[i]
		access := ""
		if d.AdminAccess {
			access = "admin access"
		}
		node := el("a", attr{"href", "../../" + nodePath(d.Node)}, d.Node)
		used := r.figures.usedOf(c.Key(), d.Device).String()
		devices = append(devices, []any{d.Request, node, gpuName(shot, d), d.Device, d.UUID, used, access})
	}
	columns := []string{"Request", "Class"}
	if c.ExtendedResources {
		columns = []string{"Container", "Extended resource"}
	}
	if requests != nil {
		add(head, []any{el("h2", "Requests"), table(columns, requests)})
	}
	if devices != nil {
		add(head, []any{el("h2", "Devices"), table([]string{"Request", "Node", "GPU", "Device", "UUID", "Uses", ""}, devices)})
	}
	return head
}
