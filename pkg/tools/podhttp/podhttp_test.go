// SPDX-License-Identifier: Apache-2.0

package podhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// apiServer forwards port 8080 of pod cleave-system/plugin, by SPDY alone, to a function that answers a request.
type apiServer struct {
	t *testing.T
	// answer writes to the two streams.
	answer func(data, failed io.Writer, request *http.Request)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/api/v1/namespaces/cleave-system/pods/plugin/portforward" || r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "pods \"plugin\" is forbidden", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "no WebSockets here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		s.t.Error(err)
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	})
	if conn == nil {
		s.t.Error("the connection was not upgraded")
		return
	}
	defer func() { _ = conn.Close() }()
	failed, data := <-streams, <-streams
	for stream, kind := range map[httpstream.Stream]string{failed: corev1.StreamTypeError, data: corev1.StreamTypeData} {
		if h := stream.Headers(); h.Get(corev1.StreamType) != kind || h.Get(corev1.PortHeader) != "8080" {
			s.t.Errorf("got a stream with %v, want one of type %s", h, kind)
		}
	}
	request, err := http.ReadRequest(bufio.NewReader(data))
	if err != nil {
		s.t.Error(err)
		return
	}
	s.answer(data, failed, request)
	_, _ = failed.Close(), data.Close()
	<-conn.CloseChan()
}

func page(status, body string) func(data, _ io.Writer, request *http.Request) {
	return func(data, _ io.Writer, request *http.Request) {
		fmt.Fprintf(data, "HTTP/1.1 %s\r\nConnection: close\r\n\r\n%s%s", status, request.URL.Path, body)
	}
}

// clientOf returns a client of an API server whose plugin answers so.
func clientOf(t *testing.T, answer func(data, failed io.Writer, request *http.Request)) *Client {
	t.Helper()
	server := httptest.NewServer(&apiServer{t, answer})
	t.Cleanup(server.Close)
	c, err := NewClient(&rest.Config{Host: server.URL, BearerToken: "secret"}, 64)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestGet(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(data, failed io.Writer, request *http.Request)
		pod    string
		want   string
		says   string
	}{
		"page":      {page("200 OK", " of a plugin"), "plugin", "/metrics of a plugin", ""},
		"refused":   {func(_, failed io.Writer, _ *http.Request) { fmt.Fprint(failed, "connection refused") }, "plugin", "", "pod cleave-system/plugin: connection refused"},
		"closed":    {func(io.Writer, io.Writer, *http.Request) {}, "plugin", "", "EOF"},
		"busy":      {page("503 Service Unavailable", ""), "plugin", "", "503 Service Unavailable"},
		"too long":  {page("200 OK", strings.Repeat("x", 100)), "plugin", "", "too long: more than 64 bytes"},
		"forbidden": {nil, "other", "", "is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := clientOf(t, tt.answer).Get(t.Context(), "cleave-system", tt.pod, 8080, "/metrics")
			if tt.says == "" {
				if err != nil || string(got) != tt.want {
					t.Errorf("got %q, %v, want %q", got, err, tt.want)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error that says %q", err, tt.says)
			}
		})
	}
}

// A pod that does not answer is not waited for any longer than ctx.
func TestGet_Ends(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	c := clientOf(t, func(io.Writer, io.Writer, *http.Request) { cancel(); <-ended })
	_, err := c.Get(ctx, "cleave-system", "plugin", 8080, "/metrics")
	close(ended)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
