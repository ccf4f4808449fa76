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

// palette gives each namespace a colour and two letters. It begins with the namespace's hash, so that a restart mostly gives the same
// colour, and takes the next one while that is in use. Neither changes while the program runs.
type palette struct {
	mu    sync.Mutex
	of    map[string]int
	taken [colours]int

	letters map[string]string // by namespace
	used    map[string]bool
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

// initials are two letters for a namespace, as colours alone say nothing to some: "ml-research" is "mr". Of namespaces with the same
// ones, the later has others of its letters, or a digit; with more of them than that, both have the same.
func (p *palette) initials(namespace string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have, ok := p.letters[namespace]; ok {
		return have
	}
	all := candidates(namespace)
	best := all[0]
	for _, c := range all {
		if !p.used[c] {
			best = c
			break
		}
	}
	if p.letters == nil {
		p.letters, p.used = map[string]string{}, map[string]bool{}
	}
	p.letters[namespace], p.used[best] = best, true
	return best
}

// candidates are letters for a namespace, the best first.
func candidates(namespace string) []string {
	parts := strings.FieldsFunc(namespace, func(r rune) bool { return r == '-' || r == '.' || r == '_' })
	if len(parts) == 0 {
		return []string{""}
	}
	first := firstRune(parts[0])
	var all []string
	if len(parts) > 1 {
		all = append(all, first+firstRune(parts[1]))
	}
	for _, r := range strings.Join(parts, "")[len(first):] {
		all = append(all, first+string(r))
	}
	if all == nil {
		all = append(all, first)
	}
	for digit := range 10 {
		all = append(all, first+strconv.Itoa(digit))
	}
	return all
}

func firstRune(s string) string {
	if s == "" {
		return ""
	}
	_, size := utf8.DecodeRuneInString(s)
	return s[:size]
}
