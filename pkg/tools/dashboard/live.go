// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleave-dra/cleave/pkg/tools/fleet"
)

// Times of a stream.
const (
	// beat is how often an idle stream says that it is there; app.js waits for two of them.
	beat = 10 * time.Second
	// timeout is how long a browser may take to read an event.
	timeout = 20 * time.Second
	// lifetime ends a stream, so that no browser that nobody looks at keeps one forever; a visible page connects again.
	lifetime = time.Hour
)

// update is an event: what changed on a page.
type update struct {
	// Live is the version that the page then shows.
	Live string `json:"live"`
	// Set are elements by ID, which replace those that are there.
	Set map[string]string `json:"set,omitempty"`
	// Order are the IDs of each list that changed its members or their order.
	Order map[string][]string `json:"order,omitempty"`
}

// differ compares a snapshot with the version that a page shows.
type differ struct {
	has    map[string]string // markup by ID
	orders map[string][]string
	since  uint64 // fragments of this version and before are there
	first  bool
}

// newDiffer parses the version that a page shows, "program-version". A page of another program shows nothing.
func (s *Server) newDiffer(seen string) *differ {
	d := &differ{has: map[string]string{}, orders: map[string][]string{}, first: true}
	program, version, _ := strings.Cut(seen, "-")
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && program == s.program {
		d.since = n
	}
	return d
}

// next is what changes a page into p.
func (d *differ) next(p *page) update {
	u := update{Set: map[string]string{}, Order: map[string][]string{}}
	has := make(map[string]string, len(d.has))
	for _, f := range p.fragments() {
		before, known := d.has[f.id]
		if d.first {
			known, before = f.version != 0 && f.version <= d.since, f.markup
		}
		if !known || before != f.markup {
			u.Set[f.id] = f.markup
		}
		has[f.id] = f.markup
	}
	for _, part := range p.parts {
		if part.list == nil {
			continue
		}
		ids := make([]string, 0, len(part.list.items))
		for _, f := range part.list.items {
			ids = append(ids, f.id)
		}
		if d.first || !slices.Equal(ids, d.orders[part.list.id]) {
			u.Order[part.list.id] = ids
		}
		d.orders[part.list.id] = ids
	}
	d.has, d.first = has, false
	return u
}

func (u *update) isEmpty() bool { return len(u.Set) == 0 && len(u.Order) == 0 }

// stream sends what changes on a page.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, render func(*http.Request, *fleet.Snapshot) (*page, error)) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		http.Error(w, "too many live pages", http.StatusServiceUnavailable)
		return
	}
	out := newEvents(w, r)
	defer out.close()
	d := s.newDiffer(r.URL.Query().Get("live"))
	end, tick := time.NewTimer(lifetime), time.NewTicker(beat)
	defer end.Stop()
	defer tick.Stop()
	for {
		next, reason := s.source.Next(), s.pages.reasons.changed()
		if shot := s.source.Snapshot(); shot != nil {
			if err := s.sendUpdate(out, r, d, shot, render); err != nil {
				return // the browser has gone, or the page has
			}
		}
		for wait := true; wait; {
			select {
			case <-r.Context().Done():
				return
			case <-end.C:
				return
			case <-next:
				wait = false
			case <-reason:
				wait = false
			case <-tick.C: // reasons may be due again
				if out.send("beat", struct{}{}) != nil {
					return
				}
				wait = false
			}
		}
	}
}

// sendUpdate sends the changes of a snapshot to a page. A page that is gone says so.
func (s *Server) sendUpdate(out *events, r *http.Request, d *differ, shot *fleet.Snapshot,
	render func(*http.Request, *fleet.Snapshot) (*page, error),
) error {
	p, err := render(r, shot)
	if errors.Is(err, fleet.ErrUnknown) {
		return errors.Join(err, out.send("gone", struct{}{}))
	}
	if err != nil {
		return err
	}
	first := d.first
	u := d.next(p)
	if u.isEmpty() && !first {
		return nil
	}
	u.Live = s.live(shot)
	return out.send("update", u)
}

// events writes Server-Sent Events.
type events struct {
	w       io.Writer
	zip     *gzip.Writer
	control *http.ResponseController
}

func newEvents(w http.ResponseWriter, r *http.Request) *events {
	e := &events{w: w, control: http.NewResponseController(w)}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // proxies are not to wait for the end
	if takesGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		if zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed); err == nil { // the level is valid
			e.w, e.zip = zip, zip
		}
	}
	w.WriteHeader(http.StatusOK)
	return e
}

// send writes an event with its data in JSON, which has no line breaks.
func (e *events) send(name string, data any) error {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(data); err != nil {
		return fmt.Errorf("encode an event: %w", err)
	}
	if err := e.control.SetWriteDeadline(time.Now().Add(timeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("send an event: %w", err)
	}
	if _, err := fmt.Fprintf(e.w, "event: %s\ndata: %s\n", name, encoded.Bytes()); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	if e.zip != nil {
		if err := e.zip.Flush(); err != nil {
			return fmt.Errorf("send an event: %w", err)
		}
	}
	if err := e.control.Flush(); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	return nil
}

func (e *events) close() {
	if e.zip != nil {
		_ = e.zip.Close() // the client may have gone
	}
}
