// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"net/http"
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
	q.words = strings.Fields(strings.ToLower(q.text))
	if n, err := strconv.Atoi(values.Get("page")); err == nil && n > 0 {
		q.page = min(n, maxPage)
	}
	return q
}

// matches reports whether a text, in lower case, has all words. Words with a colon are whole lines of it.
func (q *query) matches(text string) bool {
	for _, w := range q.words {
		if !strings.Contains(text, w) || strings.Contains(w, ":") && !strings.Contains("\n"+text+"\n", "\n"+w+"\n") {
			return false
		}
	}
	return true
}

// shows reports whether the i-th match is on the page.
func (q *query) shows(i int) bool { return i/rowsPerPage == q.page-1 }
