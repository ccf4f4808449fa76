// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// policy lets a page load its own files only, and be in no frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// guard refuses what no person with this page open asks for. There is no login: who may connect is up to the network, and pages
// of other sites must not ask through a person's browser. They could not read an answer, unless a name of theirs led here (DNS
// rebinding): names are refused that are not the server's.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "the dashboard only reads", http.StatusMethodNotAllowed)
		case !s.isHost(r.Host):
			http.Error(w, "the dashboard has no such host name (--allowed-hosts)", http.StatusMisdirectedRequest)
		case fromElsewhere(r):
			http.Error(w, "another site asks", http.StatusForbidden)
		case len(r.URL.RawQuery) > 4*maxQuery+200 || len(r.URL.Path) > 1024:
			http.Error(w, "the address is too long", http.StatusRequestURITooLong)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isHost reports whether a request's host is the server's. An IP address cannot be pointed here by another site, as a name can.
func (s *Server) isHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return host == "localhost" || net.ParseIP(host) != nil || slices.ContainsFunc(s.config.Hosts, func(h string) bool {
		return strings.EqualFold(h, host)
	})
}

// fromElsewhere reports whether a page of another site sent the request, and not a person who followed a link.
func fromElsewhere(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return true
		}
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
