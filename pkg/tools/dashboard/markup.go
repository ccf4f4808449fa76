// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"io"
	"strings"

	"golang.org/x/net/html"
)

// A page is a tree of nodes, and no code here writes markup as text: html.Render escapes every text and attribute.
// docs/decisions/html.md says why it is not html/template.

// attr is an attribute; an empty value leaves it out.
type attr struct{ name, value string }

func class(names ...string) attr { return attr{"class", strings.Join(names, " ")} }

// present is an attribute without a value.
const present = "\x00"

// el is an element. Children are *html.Node, []*html.Node, []any of these, string, attr or nil.
func el(tag string, children ...any) *html.Node {
	n := &html.Node{Type: html.ElementNode, Data: tag}
	add(n, children)
	return n
}

func add(n *html.Node, children []any) {
	for _, c := range children {
		switch c := c.(type) {
		case attr:
			switch c.value {
			case "":
			case present:
				n.Attr = append(n.Attr, html.Attribute{Key: c.name})
			default:
				n.Attr = append(n.Attr, html.Attribute{Key: c.name, Val: clean(c.value)})
			}
		case string:
			if c != "" {
				n.AppendChild(&html.Node{Type: html.TextNode, Data: clean(c)})
			}
		case *html.Node:
			if c != nil {
				n.AppendChild(c)
			}
		case []*html.Node:
			for _, child := range c {
				n.AppendChild(child)
			}
		case []any:
			add(n, c)
		}
	}
}

// clean replaces what HTML forbids in text: control characters and broken UTF-8.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

func markup(n *html.Node) string {
	var b strings.Builder
	if err := html.Render(&b, n); err != nil {
		return "" // a Builder does not fail, and the tree has no void element with children
	}
	return b.String()
}

// raw is a text node of markup that this package rendered before.
func raw(rendered string) *html.Node { return &html.Node{Type: html.RawNode, Data: rendered} }

// writeDocument writes a whole page.
func writeDocument(w io.Writer, root *html.Node) error {
	doc := &html.Node{Type: html.DocumentNode}
	doc.AppendChild(&html.Node{Type: html.DoctypeNode, Data: "html"})
	doc.AppendChild(root)
	return html.Render(w, doc)
}
