// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Times of a request. Whoever takes longer occupies a place of others: the API server is on the cluster's network and gives up
// after webhook.timeoutSeconds.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second // from the end of its header on: with the wait for a place, and with the check
)

// Server is a webhook over TLS.
type Server struct {
	Rules Rules
	// Address to listen at, such as ":8443".
	Address string
	// CertFile and KeyFile are read again when they change, as cert-manager and mounted Secrets change them.
	CertFile, KeyFile string
}

// Run serves until ctx ends. started, which may be nil, receives the address.
func (s *Server) Run(ctx context.Context, started func(net.Addr)) error {
	certificate := &certificate{certFile: s.CertFile, keyFile: s.KeyFile}
	if _, err := certificate.get(nil); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("listen for admission reviews on --address %s: %w", s.Address, err)
	}
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		TLSConfig:   &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	klog.FromContext(ctx).Info("Serving admission reviews", "address", listener.Addr(), "driver", s.Rules.Driver)
	if started != nil {
		started(listener.Addr())
	}
	done := make(chan error, 1)
	go func() { done <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-done:
		return fmt.Errorf("serve admission reviews: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		return fmt.Errorf("end the webhook: %w", errors.Join(err, server.Close(), notClosed(<-done)))
	}
	return notClosed(<-done)
}

// handler is all that the webhook serves.
func (s *Server) handler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/validate", newGate(s.Rules))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	return mux
}

// notClosed is what ended a server, unless it was asked to end.
func notClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// certificate is a key pair that may change on disk.
type certificate struct {
	certFile, keyFile string

	mu     sync.Mutex
	loaded *tls.Certificate
	seen   [2]time.Time
}

// get reads the files again when they have changed. While they do not fit together, as between two writes, the pair before
// goes on.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var now [2]time.Time
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return c.before(fmt.Errorf("read the webhook's certificate: %w", err))
		}
		now[i] = info.ModTime()
	}
	if c.loaded != nil && now == c.seen {
		return c.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return c.before(fmt.Errorf("read the webhook's certificate from %s and %s: %w", c.certFile, c.keyFile, err))
	}
	c.loaded, c.seen = &pair, now
	return c.loaded, nil
}

func (c *certificate) before(err error) (*tls.Certificate, error) {
	if c.loaded != nil {
		return c.loaded, nil
	}
	return nil, err
}
