// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// Whatever is asked for, the answer is a page without foreign scripts, or a refusal.
func FuzzServer(f *testing.F) {
	source := newFakeSource(busyShot(3))
	source.views["gpu-a"] = busyView("gpu-a")
	s := newServer(f, source, Config{})
	for _, seed := range [][3]string{
		{"/", "q=ns:dev&page=2", "localhost"}, {"/nodes/gpu-a", "", "127.0.0.1:8080"}, {"/claims/dev/a", "live=1-2", "[::1]"},
		{"/claims", "q=%00%ff&page=-1", "localhost."}, {"/api/nodes", "", "10.0.0.1"}, {"/static/../server.go", "", "localhost"},
		{"/claims/%2e%2e/<script>", "q=\"><script>alert(1)</script>", "localhost"}, {"//evil.example.com/", "page=99999999999999999999", "localhost"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	over, cancel := context.WithCancel(f.Context())
	cancel() // no stream goes on
	f.Fuzz(func(t *testing.T, path, query, host string) {
		r := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/" + strings.TrimPrefix(path, "/"), RawQuery: query}, Host: host,
			Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(over)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError && w.Code != http.StatusServiceUnavailable { // of the streams, when there are enough
			t.Errorf("%q?%q of %q: %d", path, query, host, w.Code)
		}
		if to := w.Header().Get("Location"); strings.HasPrefix(to, "//") || strings.Contains(to, "://") {
			t.Errorf("%q?%q of %q leads to %q", path, query, host, to)
		}
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
			return
		}
		walk(t, w.Body.String(), func(n *html.Node) {
			if n.Type == html.ElementNode && n.Data == "script" && n.FirstChild != nil {
				t.Errorf("%q?%q: a script in the page: %s", path, query, n.FirstChild.Data)
			}
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || strings.HasPrefix(strings.ToLower(strings.TrimSpace(a.Val)), "javascript:") {
					t.Errorf("%q?%q: the attribute %s=%q", path, query, a.Key, a.Val)
				}
			}
		})
	})
}
