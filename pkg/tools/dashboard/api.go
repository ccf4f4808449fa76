// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

// addAPI adds what programs read: the same pictures in JSON.
func (s *Server) addAPI(mux *http.ServeMux) {
	for pattern, get := range map[string]func(*http.Request, *fleet.Snapshot) (any, error){
		"GET /api/totals": func(_ *http.Request, shot *fleet.Snapshot) (any, error) { return shot.Totals, nil },
		"GET /api/nodes":  func(_ *http.Request, shot *fleet.Snapshot) (any, error) { return shot.Nodes, nil },
		"GET /api/nodes/{name}": func(r *http.Request, _ *fleet.Snapshot) (any, error) {
			return s.source.View(r.PathValue("name"))
		},
		"GET /api/claims": func(_ *http.Request, shot *fleet.Snapshot) (any, error) { return shot.Claims, nil },
		"GET /api/claims/{namespace}/{name}": func(r *http.Request, shot *fleet.Snapshot) (any, error) {
			c, err := findClaim(shot, r.PathValue("namespace"), r.PathValue("name"))
			if err != nil || c.Allocated {
				return explained{Claim: c}, err
			}
			a := s.pages.reasons.of(c.Key(), shot.Version)
			return explained{c, a.explanation}, a.err
		},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serveJSON(w, r, get) })
	}
}

// explained is a claim with the reason why it waits, as soon as that is known.
type explained struct {
	*fleet.Claim
	Explanation *explain.Explanation `json:"explanation,omitempty"`
}

// failure is the answer if a request fails.
type failure struct {
	Error string `json:"error"`
}

func (s *Server) serveJSON(w http.ResponseWriter, r *http.Request, get func(*http.Request, *fleet.Snapshot) (any, error)) {
	status, shot := http.StatusOK, s.source.Snapshot()
	var answer any = failure{"the dashboard is reading the cluster"}
	if shot == nil {
		status = http.StatusServiceUnavailable
	} else if a, err := get(r, shot); err == nil {
		answer = a
	} else {
		status, answer = http.StatusInternalServerError, failure{err.Error()}
		if errors.Is(err, fleet.ErrUnknown) {
			status = http.StatusNotFound
		}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, r, status, "application/json", append(body, '\n'))
}
