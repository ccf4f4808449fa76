// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// query is a filter and a page of a list.
type query struct {
	text  string
	words []string
	page  int
}

// queryOf reads the query of a request. Long texts are cut, and an invalid page is the first.
func queryOf(r *http.Request) query {
	values := r.URL.Query()
	q := query{text: strings.TrimSpace(strings.ToValidUTF8(values.Get("q"), "")), page: 1}
	for len(q.text) > maxQuery {
		_, size := utf8.DecodeLastRuneInString(q.text)
		q.text = q.text[:len(q.text)-size]
	}
	q.words = wordsOf(q.text)
	if n, err := strconv.Atoi(values.Get("page")); err == nil && n > 0 {
		q.page = min(n, maxPage)
	}
	return q
}

var (
	// spacedGPU is how people write GPU3, too.
	spacedGPU = regexp.MustCompile(`\bgpu\s+#?(\d{1,2})\b`)
	oneGPU    = regexp.MustCompile(`^gpu\d+$|^gpu-[0-9a-f]{8}(-|$)|^gpu-[0-9a-f]{4}-[0-9a-f]{2}-`)
)

func wordsOf(text string) []string {
	return strings.Fields(spacedGPU.ReplaceAllString(strings.ToLower(text), "gpu$1"))
}

// isExact reports whether a word is a whole line of the text: one with a colon, and GPU3, which is not to find GPU30.
func isExact(word string) bool {
	return strings.Contains(word, ":") || strings.HasPrefix(word, "gpu") && !strings.Contains(word, "-") && oneGPU.MatchString(word)
}

// matches reports whether a text, in lower case, has all words.
func (q *query) matches(text string) bool {
	for _, w := range q.words {
		if !strings.Contains(text, w) || isExact(w) && !strings.Contains("\n"+text+"\n", "\n"+w+"\n") {
			return false
		}
	}
	return true
}

// ofGPU reports whether a GPU is asked for, by its number or UUID: then only such GPUs are shown.
func (q *query) ofGPU() bool { return slices.ContainsFunc(q.words, oneGPU.MatchString) }

// shows reports whether the i-th match is on the page.
func (q *query) shows(i int) bool { return i/rowsPerPage == q.page-1 }
