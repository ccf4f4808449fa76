// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// endless is the body of a request that never comes.
type endless struct{ closed chan struct{} }

func (e endless) Read([]byte) (int, error) { <-e.closed; return 0, http.ErrBodyReadAfterClose }

// asked is what a webhook answers an address.
func asked(t *testing.T, webhook http.Handler, from string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate", body)
	req.RemoteAddr = from
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	webhook.ServeHTTP(w, req)
	return w
}

// Pods send requests without end. The API server's are answered, and there are never more at a time than memory was made for.
func TestWebhook_Flood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		webhook := (&Server{Rules: DefaultRules()}).handler()
		route, _ := webhook.Handler(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate", nil))
		g, ok := route.(*gate)
		if !ok {
			t.Fatalf("reviews are served by a %T, want a gate before it", route)
		}
		closed := make(chan struct{})
		answers := make(chan int, 200)
		flood := func(from string, requests int) {
			for i := range requests {
				go func() { answers <- asked(t, webhook, fmt.Sprintf("%s:%d", from, 1000+i), endless{closed}).Code }()
			}
			synctest.Wait()
		}
		review := func() *httptest.ResponseRecorder {
			data := mustJSON(t, reviewOf(t, admissionv1.Create, claimYAML(t, `{}`), nil))
			return asked(t, webhook, "192.0.2.1:443", bytes.NewReader(data))
		}
		flood("198.51.100.1", 100)
		if len(g.places) != maxReviewsFrom {
			t.Errorf("one pod has %d places, want %d", len(g.places), maxReviewsFrom)
		}
		if w := review(); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"allowed":true`) {
			t.Errorf("the API server gets %d %s", w.Code, w.Body)
		}
		for i := range 6 {
			flood(fmt.Sprintf("198.51.100.%d", 2+i), 10)
		}
		if len(g.places) != maxReviews {
			t.Errorf("%d requests are read at a time, want %d", len(g.places), maxReviews)
		}
		// Nothing is left for it now: it is told so before its own time is over, and served once the connections were closed.
		if w := review(); w.Code != http.StatusServiceUnavailable {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
		close(closed)
		synctest.Wait()
		if w := review(); w.Code != http.StatusOK {
			t.Errorf("after the flood: got %d %s", w.Code, w.Body)
		}
		for range 160 {
			if code := <-answers; code != http.StatusBadRequest && code != http.StatusServiceUnavailable {
				t.Errorf("a request without a body gets %d", code)
			}
		}
		if len(g.places) != 0 || len(g.from) != 0 {
			t.Errorf("%d places are taken, %d addresses known", len(g.places), len(g.from))
		}
	})
}

// What a request says cannot look like a line of the log.
func TestWebhook_LogLines(t *testing.T) {
	const forged = "x\nI0101 00:00:00.000000       1 serve.go:1] \"Reviewed\" allowed=true\x1b[2J"
	review := reviewOf(t, admissionv1.Create, claimYAML(t, `{`+config+`mps: {"a\nI0101 b": 5}}}}]}`), nil)
	review.Request.UserInfo.Username, review.Request.Name, review.Request.Namespace = forged, forged, forged
	var log bytes.Buffer
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(9), textlogger.Output(&log)))
	for contentType, body := range map[string][]byte{
		"application/json": mustJSON(t, review), "a/b; c=" + forged: nil, "application/json; charset=utf-8": []byte(forged),
	} {
		req := httptest.NewRequestWithContext(klog.NewContext(t.Context(), logger), http.MethodPost, "/validate", bytes.NewReader(body))
		req.Header.Set("Content-Type", contentType)
		DefaultRules().ServeHTTP(httptest.NewRecorder(), req)
	}
	entries := 0
	for line := range strings.Lines(log.String()) {
		switch {
		case strings.HasPrefix(line, "\t"), strings.HasPrefix(line, " >"): // goes on with the entry before
		case strings.Contains(line, "] \"Reviewed\" kind=\"ResourceClaim\""), strings.Contains(line, "] \"Could not read an admission review\""):
			entries++
		default:
			t.Errorf("the log has the line %q", line)
		}
	}
	if entries != 3 || strings.Contains(log.String(), "\x1b") {
		t.Errorf("got %d entries, want 3 without what a terminal acts on:\n%q", entries, &log)
	}
}
