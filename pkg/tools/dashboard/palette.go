// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// colours is how many the style sheet has for namespaces (n0 to n11).
const colours = 12

// palette gives each namespace a colour. It begins with the namespace's hash, so that a restart mostly gives the same, and takes
// the next one while that is in use. Colours do not change while the program runs.
type palette struct {
	mu    sync.Mutex
	of    map[string]int
	taken [colours]int
}

func (p *palette) colour(namespace string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.of[namespace]; ok {
		return c
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(namespace)) // never fails
	first := int(h.Sum32() % colours)
	best := first
	for i := range colours {
		if c := (first + i) % colours; p.taken[c] < p.taken[best] {
			best = c
		}
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.of[namespace] = best
	p.taken[best]++
	return best
}

// class is the class of a namespace's colour.
func (p *palette) class(namespace string) string {
	if namespace == "" {
		return ""
	}
	return "n" + strconv.Itoa(p.colour(namespace))
}

// initials are two letters for a namespace, as colours alone say nothing to some: "ml-research" is "mr".
func initials(namespace string) string {
	parts := strings.FieldsFunc(namespace, func(r rune) bool { return r == '-' || r == '.' || r == '_' })
	switch {
	case len(parts) == 0:
		return ""
	case len(parts) > 1:
		return firstRune(parts[0]) + firstRune(parts[1])
	default:
		first := firstRune(parts[0])
		return first + firstRune(parts[0][len(first):])
	}
}

func firstRune(s string) string {
	if s == "" {
		return ""
	}
	_, size := utf8.DecodeRuneInString(s)
	return s[:size]
}
