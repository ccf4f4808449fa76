// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

func TestGuard_Requests(t *testing.T) {
	s := newServer(t, newFakeSource(busyShot(1)), Config{Hosts: []string{"cleave-dashboard.cleave-system.svc"}})
	for name, test := range map[string]struct {
		method, host string
		header       map[string]string
		path         string
		want         int
	}{
		"localhost":        {host: "localhost:8080", want: 200},
		"loopback":         {host: "127.0.0.1:8080", want: 200},
		"IPv6":             {host: "[::1]:8080", want: 200},
		"address of a pod": {host: "10.1.2.3:8080", want: 200},
		"allowed":          {host: "Cleave-Dashboard.cleave-system.svc", want: 200},
		"rebound name":     {host: "evil.example.com:8080", want: 421},
		"similar name":     {host: "localhost.evil.example.com", want: 421},
		"empty":            {host: "", want: 421},
		"POST":             {method: "POST", host: "localhost", want: 405},
		"DELETE":           {method: "DELETE", host: "localhost", path: "/claims/dev/a", want: 405},
		"OPTIONS":          {method: "OPTIONS", host: "localhost", want: 405},
		"own origin":       {host: "localhost:8080", header: map[string]string{"Origin": "http://localhost:8080"}, want: 200},
		"other origin":     {host: "localhost:8080", header: map[string]string{"Origin": "http://evil.example.com"}, want: 403},
		"null origin":      {host: "localhost:8080", header: map[string]string{"Origin": "null"}, want: 403},
		"other site's fetch": {host: "localhost:8080", header: map[string]string{"Sec-Fetch-Site": "cross-site",
			"Sec-Fetch-Mode": "no-cors"}, want: 403},
		"link on another site": {host: "localhost:8080", header: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, want: 200},
		"long query":           {host: "localhost", path: "/?q=" + strings.Repeat("a", 2000), want: 414},
		"unknown path":         {host: "localhost", path: "/etc/passwd", want: 404},
		"unknown node":         {host: "localhost", path: "/nodes/none", want: 404},
		"unknown claim":        {host: "localhost", path: "/api/claims/a/b", want: 404},
		"file outside":         {host: "localhost", path: "/static/..%2fserver.go", want: 404},
		"directory":            {host: "localhost", path: "/static/.js", want: 404},
		"style":                {host: "localhost", path: "/static/style.css", want: 200},
	} {
		method, path := test.method, test.path
		if method == "" {
			method = http.MethodGet
		}
		if path == "" {
			path = "/"
		}
		r := httptest.NewRequest(method, path, nil)
		r.Host = test.host
		for k, v := range test.header {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != test.want {
			t.Errorf("%s: %d, want %d", name, w.Code, test.want)
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: policy %q", name, csp)
		}
		if w.Header().Get("Set-Cookie") != "" || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: headers %v", name, w.Header())
		}
	}
}

func TestServer_Starting(t *testing.T) {
	s := newServer(t, newFakeSource(nil), Config{})
	for path, want := range map[string]int{"/": 503, "/readyz": 503, "/healthz": 200, "/api/nodes": 503} {
		if got := get(s, path).Code; got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

func TestAPI_JSON(t *testing.T) {
	source := newFakeSource(busyShot(1))
	source.views["gpu-a"] = busyView("gpu-a")
	s := newServer(t, source, Config{})
	var nodes []fleet.Node
	for path, into := range map[string]any{"/api/nodes": &nodes, "/api/claims": &[]fleet.Claim{}, "/api/totals": &fleet.Totals{},
		"/api/claims/dev/a": &fleet.Claim{}, "/api/nodes/gpu-a": &map[string]any{}} {
		w := get(s, path)
		if err := json.Unmarshal(w.Body.Bytes(), into); w.Code != http.StatusOK || err != nil {
			t.Errorf("%s: %d, %v", path, w.Code, err)
		}
	}
	if len(nodes) != 1 || nodes[0].GPUs[1].Bars[0].Claim != "dev/a" || nodes[0].GPUs[1].Bars[0].Means != "allocated" {
		t.Errorf("got %+v", nodes)
	}
}

func TestServe_EndsWithStreams(t *testing.T) {
	s := newServer(t, newFakeSource(busyShot(1)), Config{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	r, err := http.Get("http://" + listener.Addr().String() + "/?live=")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Texts have a contrast of 4.5 at least (WCAG 2.2, 1.4.3), in light and in dark.
func TestStyle_Contrast(t *testing.T) {
	data, err := static.ReadFile("static/style.css")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile(`(?s):root \{(.*?)\}`).FindAllStringSubmatch(string(data), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d sets of colours, want light and dark", len(blocks))
	}
	pairs := [][2]string{{"fg", "bg"}, {"fg", "card"}, {"dim", "bg"}, {"dim", "card"}, {"dim", "free"}, {"fg", "free"}, {"accent", "card"},
		{"alarm", "card"}, {"alarm", "bg"}, {"alarm", "alarm-bg"}, {"alarm", "free"}, {"fg", "grid"}, {"fg", "flash"}}
	for i := range colours {
		pairs = append(pairs, [2]string{"on", "c" + strconv.Itoa(i)})
	}
	for i, block := range blocks {
		luminance := map[string]float64{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+): #([0-9a-f]{3,6});`).FindAllStringSubmatch(block[1], -1) {
			luminance[m[1]] = luminanceOf(t, m[2])
		}
		for _, p := range pairs {
			a, b := luminance[p[0]], luminance[p[1]]
			if got := (max(a, b) + 0.05) / (min(a, b) + 0.05); got < 4.5 || luminance[p[0]] == 0 && luminance[p[1]] == 0 {
				t.Errorf("set %d: %s on %s has a contrast of %.2f", i, p[0], p[1], got)
			}
		}
	}
}

func luminanceOf(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.03928 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// The script and the style load nothing and build no markup of their own.
func TestStatic_SelfContained(t *testing.T) {
	for _, name := range []string{"app.js", "style.css", "icon.svg"} {
		data, err := static.ReadFile("static/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "http://www.w3.org/2000/svg", "")
		for _, word := range []string{"http:", "https:", "//cdn", "@import", "url(", "eval(", "document.write", "insertAdjacentHTML", "import("} {
			if strings.Contains(text, word) {
				t.Errorf("%s has %q", name, word)
			}
		}
		if strings.Count(text, "innerHTML") > 1 {
			t.Errorf("%s sets markup in more than one place", name)
		}
	}
}
