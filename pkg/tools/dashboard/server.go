// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/fleet"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// Source is where the pictures come from; fleet.Source is one.
type Source interface {
	// Snapshot is the newest; nil before the first.
	Snapshot() *fleet.Snapshot
	// Next is closed when there is a newer one.
	Next() <-chan struct{}
	// View is the whole view of a node.
	View(node string) (*inspect.View, error)
	// Explain says why claims, "namespace/name", are not allocated. On a large cluster it takes seconds.
	Explain(ctx context.Context, keys []string) (map[string]*explain.Explanation, error)
}

// Config of a Server.
type Config struct {
	// Driver is the name of the DRA driver.
	Driver string
	// Hosts are names that the server is reached by, apart from localhost and IP addresses.
	Hosts []string
	// MaxStreams bounds live pages, MaxConnections all connections; zero for defaults.
	MaxStreams, MaxConnections int
	// Figures of claims; nil if there are none.
	Figures Figures
}

// Bounds.
const (
	defaultStreams     = 100
	defaultConnections = 400
	maxQuery           = 200
	// rowsPerPage is more than most clusters have nodes: browsers lay out only the rows that are in view.
	rowsPerPage = 1000
	// maxPage is beyond any cluster.
	maxPage = 10000
)

//go:embed static
var static embed.FS

// Server answers requests.
type Server struct {
	config  Config
	source  Source
	build   string // of the static files
	program string // this process, with its build
	streams chan struct{}
	pages   *renderer
	handler http.Handler
}

// New makes a server.
func New(source Source, config Config) (*Server, error) {
	if config.MaxStreams == 0 {
		config.MaxStreams = defaultStreams
	}
	if config.MaxConnections == 0 {
		config.MaxConnections = defaultConnections
	}
	s := &Server{config: config, source: source, streams: make(chan struct{}, config.MaxStreams),
		pages: &renderer{source: source, reasons: newReasons(source.Explain), rows: map[string]row{}, figures: newFigures(config.Figures),
			driver: config.Driver}}
	hash := sha256.New()
	err := fs.WalkDir(static, "static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := static.ReadFile(path)
		hash.Write(data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the dashboard's files: %w", err)
	}
	s.build = hex.EncodeToString(hash.Sum(nil)[:6])
	s.program = s.build + "." + rand.Text()[:8]
	s.handler = s.guard(s.routes())
	return s, nil
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	wg.Go(func() { s.pages.reasons.run(ctx) })
	if f := s.pages.figures; f != nil {
		wg.Go(func() { f.used.run(ctx) })
		wg.Go(func() { f.advice.run(ctx) })
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(netutil.LimitListener(listener, s.config.MaxConnections)) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve the dashboard: %w", err)
	case <-ctx.Done(): // which ends live pages, too
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(grace)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if ended := <-done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return fmt.Errorf("end the dashboard: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.source.Snapshot() == nil {
			http.Error(w, "reading the cluster", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /static/{file}", s.serveStatic)
	pages := map[string]func(*http.Request, *fleet.Snapshot) (*page, error){
		"GET /{$}": func(r *http.Request, shot *fleet.Snapshot) (*page, error) {
			return s.pages.overview(shot, queryOf(r)), nil
		},
		"GET /nodes/{name}": func(r *http.Request, shot *fleet.Snapshot) (*page, error) {
			return s.pages.nodePage(shot, r.PathValue("name"))
		},
		"GET /claims": func(r *http.Request, shot *fleet.Snapshot) (*page, error) {
			return s.pages.claimsPage(shot, queryOf(r)), nil
		},
		"GET /claims/{namespace}/{name}": func(r *http.Request, shot *fleet.Snapshot) (*page, error) {
			return s.pages.claimPage(shot, r.PathValue("namespace"), r.PathValue("name"))
		},
	}
	if f := s.pages.figures; f != nil {
		pages["GET /advice"] = func(_ *http.Request, shot *fleet.Snapshot) (*page, error) { return f.advicePage(shot), nil }
	}
	for pattern, render := range pages {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.servePage(w, r, render) })
	}
	s.addAPI(mux)
	return mux
}

// servePage answers with a page, or streams what changes on it.
func (s *Server) servePage(w http.ResponseWriter, r *http.Request, render func(*http.Request, *fleet.Snapshot) (*page, error)) {
	if r.URL.Query().Has("live") {
		s.stream(w, r, render)
		return
	}
	shot := s.source.Snapshot()
	if shot == nil {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Refresh", "1")
		wait := s.message("Reading the cluster", "The dashboard has just started. This page loads again by itself.")
		s.document(w, r, http.StatusServiceUnavailable, wait, "")
		return
	}
	p, err := render(r, shot)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.document(w, r, http.StatusOK, p, s.live(shot))
}

// live is the version that a live page shows: the program and the snapshot.
func (s *Server) live(shot *fleet.Snapshot) string {
	return s.program + "-" + strconv.FormatUint(shot.Version, 10)
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, fleet.ErrUnknown) {
		s.document(w, r, http.StatusNotFound, s.message("Not found", err.Error()), "")
		return
	}
	klog.FromContext(r.Context()).V(2).Info("A page cannot be shown", "path", r.URL.Path, "err", err)
	s.document(w, r, http.StatusInternalServerError, s.message("This page cannot be shown", err.Error()), "")
}

// message is a page that says one thing. It has no links of its own: it may be at any depth.
func (s *Server) message(title, text string) *page {
	return &page{title: title, root: "/", parts: []part{{fixed: el("section", class("message"), el("h1", title), el("p", text))}}}
}

func (s *Server) document(w http.ResponseWriter, r *http.Request, status int, p *page, live string) {
	var b bytes.Buffer
	if err := writeDocument(&b, p.document(s.build, live, s.pages.figures != nil)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, r, status, "text/html; charset=utf-8", b.Bytes())
}

// send writes a body, compressed if it is worth it.
func send(w http.ResponseWriter, r *http.Request, status int, mediaType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Add("Vary", "Accept-Encoding")
	if len(body) < 1<<10 || !takesGzip(r) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = w.Write(body) // the client may have gone
		return
	}
	h.Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return // the level is valid
	}
	_, _ = z.Write(body)
	_ = z.Close()
}

func takesGzip(r *http.Request) bool {
	for _, e := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if name, _, _ := strings.Cut(e, ";"); strings.TrimSpace(name) == "gzip" {
			return true
		}
	}
	return false
}

var mediaTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

func (s *Server) serveStatic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 || mediaTypes[name[dot:]] == "" {
		http.NotFound(w, r)
		return
	}
	f, err := static.Open("static/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if r.URL.RawQuery == s.build {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	send(w, r, http.StatusOK, mediaTypes[name[dot:]], data)
}
