// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
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
			if c.Allocated != pending && q.matches(claimText(c)) {
				shown = append(shown, c)
			}
		}
	}
	rows := &list{id: "claims"}
	for i, c := range shown {
		if !q.shows(i) {
			continue
		}
		id := "claim-" + c.Namespace + "-" + c.UID
		row, version := r.claimRow(id, c), c.Version
		if !c.Allocated && i < mostReasons {
			row.AppendChild(el("p", class("why"), r.why(c.Key(), shot.Version)))
			version = 0 // the reason may change
		}
		rows.items = append(rows.items, fragment{id, markup(row), version})
	}
	return &page{title: "Claims", section: "Claims", root: "./", parts: []part{
		one("notices", 0, notices(shot)),
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
func claimText(c *fleet.Claim) string {
	words := []string{c.Key(), "ns:" + c.Namespace, "is:" + claimState(c)}
	if !c.Allocated {
		words = append(words, "is:pending")
	}
	if c.ExtendedResources {
		words = append(words, "is:extended")
	}
	for _, request := range c.Requests {
		words = append(words, request.Asks...)
	}
	for _, d := range c.Devices {
		words = append(words, d.Node, d.Device, d.UUID)
	}
	return strings.ToLower(strings.Join(append(words, c.Pods...), "\n"))
}

func (r *renderer) claimRow(id string, c *fleet.Claim) *html.Node {
	where := el("span", class("where"))
	for i, d := range c.Devices {
		if i == 4 {
			where.AppendChild(el("span", fmt.Sprintf("and %d more", len(c.Devices)-i)))
			break
		}
		if i == 0 || c.Devices[i-1].Node != d.Node {
			where.AppendChild(el("a", attr{"href", nodePath(d.Node)}, d.Node))
		}
		where.AppendChild(el("span", d.Device))
	}
	state := claimState(c)
	return el("li", attr{"id", id}, class("row", "claim-row", "is-"+state),
		el("span", class("name"), r.claimLink(c.Key(), "./"), el("small", strings.Join(c.Pods, ", "))),
		el("span", class("asks"), asks(c)),
		where,
		el("span", class("badges"), el("span", class("badge", "state-"+state), state)))
}

// asks describes the requests of a claim.
func asks(c *fleet.Claim) string {
	var parts []string
	for _, request := range c.Requests {
		parts = append(parts, strings.Join(request.Asks, " or "))
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
		one("notices", 0, notices(shot)),
		one("claim", c.Version, r.claimHead(c)),
	}}
	if !c.Allocated {
		p.parts = append(p.parts, one("explanation", 0, r.explanation(c.Key(), shot.Version)))
	} else {
		p.parts = append(p.parts, one("explanation", 0, el("div"))) // it was here while the claim waited
	}
	return p, nil
}

func (r *renderer) claimHead(c *fleet.Claim) *html.Node {
	state := claimState(c)
	head := el("section", el("h1", el("i", class("w1", "a", r.palette.class(c.Namespace)), initials(c.Namespace)), " "+c.Key()+" ",
		el("span", class("badge", "state-"+state), state)))
	facts := el("dl", class("facts"))
	fact(facts, "pods", strings.Join(c.Pods, ", "))
	if c.ExtendedResources {
		fact(facts, "claim", "does not exist yet: the scheduler creates it for the pod's extended resources once they fit")
	}
	fact(facts, "created", c.Created.Format(time.DateTime)+" UTC")
	fact(facts, "UID", c.UID)
	head.AppendChild(facts)
	var requests, devices []*html.Node
	for _, request := range c.Requests {
		requests = append(requests, el("tr", el("td", request.Name), el("td", strings.Join(request.Asks, ", or "))))
	}
	for _, d := range c.Devices {
		access := ""
		if d.AdminAccess {
			access = "admin access"
		}
		devices = append(devices, el("tr", el("td", d.Request), el("td", el("a", attr{"href", "../../" + nodePath(d.Node)}, d.Node)),
			el("td", d.Device), el("td", d.UUID), el("td", access)))
	}
	columns := []string{"Request", "Class"}
	if c.ExtendedResources {
		columns = []string{"Container", "Extended resource"}
	}
	add(head, []any{el("h2", "Requests"), table(columns, requests)})
	if devices != nil {
		add(head, []any{el("h2", "Devices"), table([]string{"Request", "Node", "Device", "UUID", ""}, devices)})
	}
	return head
}
