// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"net/url"
	"strconv"

	"golang.org/x/net/html"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

// fragment is a part of a page that is replaced as a whole when it changes.
type fragment struct {
	// id is that of the element.
	id string
	// markup is the element.
	markup string
	// version is that of the snapshot in which the element last changed; 0 if unknown, so that a live page gets it once more.
	version uint64
}

// list is a container of fragments, which come, go and change their order.
type list struct {
	id    string
	items []fragment
}

// page is the content of a URL.
type page struct {
	title string
	// root is the way to the first page, as links are relative: the page may be below any path of a proxy.
	root string
	// section of the navigation.
	section string
	parts   []part
}

// part is one of the three.
type part struct {
	// fixed does not change.
	fixed  *html.Node
	single *fragment
	list   *list
	// frame is the element around a list; nil for a div.
	frame func(items []*html.Node, id string) *html.Node
}

// fragments are all of the page, in order.
func (p *page) fragments() []fragment {
	var all []fragment
	for _, part := range p.parts {
		switch {
		case part.single != nil:
			all = append(all, *part.single)
		case part.list != nil:
			all = append(all, part.list.items...)
		}
	}
	return all
}

// one is a part that is one fragment, an element with an ID.
func one(id string, version uint64, n *html.Node) part {
	n.Attr = append(n.Attr, html.Attribute{Key: "id", Val: id})
	return part{single: &fragment{id, markup(n), version}}
}

// sections of the navigation, the last with figures.
var sections = []struct{ name, path string }{{"Nodes", ""}, {"Claims", "claims"}, {"Advice", "advice"}}

// document is the whole page.
func (p *page) document(build, live string, figures bool) *html.Node {
	nav := el("nav", attr{"aria-label", "Pages"})
	for _, s := range sections {
		if s.path == "advice" && !figures {
			continue
		}
		current := ""
		if s.name == p.section {
			current = "page"
		}
		nav.AppendChild(el("a", attr{"href", p.root + s.path}, attr{"aria-current", current}, s.name))
	}
	main := el("main", attr{"id", "main"})
	for _, part := range p.parts {
		main.AppendChild(part.node())
	}
	return el("html", attr{"lang", "en"},
		el("head",
			el("meta", attr{"charset", "utf-8"}),
			el("meta", attr{"name", "viewport"}, attr{"content", "width=device-width, initial-scale=1"}),
			el("meta", attr{"name", "color-scheme"}, attr{"content", "light dark"}),
			el("title", p.title+" · Cleave"),
			el("link", attr{"rel", "stylesheet"}, attr{"href", p.root + "static/style.css?" + build}),
			el("link", attr{"rel", "icon"}, attr{"href", p.root + "static/icon.svg?" + build}),
			el("script", attr{"src", p.root + "static/app.js?" + build}, attr{"defer", present}),
		),
		el("body", attr{"data-live", live}, attr{"data-build", build},
			el("a", class("skip"), attr{"href", "#main"}, "Skip to content"),
			el("header",
				el("a", class("brand"), attr{"href", p.root}, "Cleave"), nav,
				el("span", attr{"id", "state"}, class("state"), attr{"role", "status"}, attr{"aria-live", "polite"}, "static"),
				el("button", attr{"id", "help-open"}, attr{"type", "button"}, attr{"aria-haspopup", "dialog"}, attr{"title", "Keys (?)"}, "?"),
			),
			main,
			help(),
		))
}

func (p *part) node() *html.Node {
	if p.fixed != nil {
		return p.fixed
	}
	if p.single != nil {
		return raw(p.single.markup)
	}
	items := make([]*html.Node, 0, len(p.list.items))
	for _, f := range p.list.items {
		items = append(items, raw(f.markup))
	}
	if p.frame != nil {
		return p.frame(items, p.list.id)
	}
	return el("div", attr{"id", p.list.id}, items)
}

// keys are those that app.js knows.
var keys = [][2]string{
	{"/", "filter"}, {"j  k  ↓  ↑", "next and previous row"}, {"Enter", "open the row"}, {"g n", "nodes"}, {"g c", "claims"},
	{"u", "up: back to the list"}, {"?", "this help"}, {"Esc", "close, or leave the filter"},
}

func help() *html.Node {
	rows := el("dl")
	for _, k := range keys {
		rows.AppendChild(el("dt", el("kbd", k[0])))
		rows.AppendChild(el("dd", k[1]))
	}
	return el("dialog", attr{"id", "help"}, attr{"aria-labelledby", "help-title"},
		el("h2", attr{"id", "help-title"}, "Keys"), rows,
		el("form", attr{"method", "dialog"}, el("button", "Close")))
}

// notices say what the snapshot lacks.
func notices(s *fleet.Snapshot) *html.Node {
	n := el("div")
	for _, text := range s.Notices {
		n.AppendChild(el("p", class("notice"), attr{"role", "alert"}, text))
	}
	return n
}

// filterForm works without a script, too.
func filterForm(query, label string, more ...any) *html.Node {
	return el("form", class("filter"), attr{"method", "get"}, attr{"role", "search"},
		el("input", attr{"type", "search"}, attr{"name", "q"}, attr{"id", "filter"}, attr{"value", query},
			attr{"maxlength", strconv.Itoa(maxQuery)}, attr{"placeholder", label + "  ( / )"}, attr{"aria-label", label},
			attr{"autocomplete", "off"}, attr{"spellcheck", "false"}),
		more)
}

// pager is the links to other pages of a long list.
func pager(q query, total int) *html.Node {
	last := max(1, (total+rowsPerPage-1)/rowsPerPage)
	n := el("p", class("pager"))
	if last == 1 {
		return n
	}
	link := func(page int, text string) {
		if page < 1 || page > last {
			return
		}
		v := url.Values{"page": {strconv.Itoa(page)}}
		if q.text != "" {
			v.Set("q", q.text)
		}
		n.AppendChild(el("a", attr{"href", "?" + v.Encode()}, text))
	}
	link(q.page-1, "‹ Previous")
	n.AppendChild(el("span", fmt.Sprintf("Page %d of %d", q.page, last)))
	link(q.page+1, "Next ›")
	return n
}

// nodePath and claimPath are below the first page.
func nodePath(name string) string { return "nodes/" + url.PathEscape(name) }

func claimPath(namespace, name string) string {
	return "claims/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}
