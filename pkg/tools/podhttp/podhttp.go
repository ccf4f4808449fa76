// SPDX-License-Identifier: Apache-2.0

package podhttp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
)

// errTooLong is for pages that are longer than one may be.
var errTooLong = errors.New("it is too long")

// Client reads pages of pods.
type Client struct {
	config *rest.Config
	client rest.Interface
	// most bounds a page, in bytes.
	most int64
}

// NewClient returns a client that reads pages of so many bytes at most.
func NewClient(config *rest.Config, most int64) (*Client, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the API server at %s: %w", config.Host, err)
	}
	return &Client{config: config, client: client.CoreV1().RESTClient(), most: most}, nil
}

// Get reads a page that a pod serves by HTTP, until ctx ends.
func (c *Client) Get(ctx context.Context, namespace, pod string, port int32, path string) ([]byte, error) {
	page, err := c.get(ctx, namespace, pod, port, path)
	if err != nil {
		return nil, fmt.Errorf("read %s of port %d of pod %s/%s: %w", path, port, namespace, pod, cmp.Or(context.Cause(ctx), err))
	}
	return page, nil
}

func (c *Client) get(ctx context.Context, namespace, pod string, port int32, path string) ([]byte, error) {
	conn, err := c.dial(ctx, c.client.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	failed, err := stream(conn, corev1.StreamTypeError, port)
	if err != nil {
		return nil, err
	}
	_ = failed.Close() // nothing is written to it
	data, err := stream(conn, corev1.StreamTypeData, port)
	if err != nil {
		return nil, err
	}
	page, err := c.exchange(ctx, data, "http://localhost"+path)
	if err == nil || errors.Is(err, errTooLong) {
		return page, err
	}
	// The kubelet says why it cannot connect, and closes both.
	_ = data.Reset()
	why, _ := io.ReadAll(io.LimitReader(failed, 4<<10))
	if text := strings.TrimSpace(string(why)); text != "" {
		return nil, errors.New(text)
	}
	return nil, err
}

// dial connects by WebSocket, else by SPDY, as kubectl does. It returns once ctx ends.
func (c *Client) dial(ctx context.Context, to *url.URL) (httpstream.Connection, error) {
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreamingWithLogger(klog.FromContext(ctx), to, c.config)
	if err != nil {
		return nil, err
	}
	direct := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, to)
	dialer := portforward.NewFallbackDialerForStreaming(tunnel, direct, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	type dialed struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan dialed, 1)
	go func() {
		conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		done <- dialed{conn, err}
	}()
	select {
	case d := <-done:
		return d.conn, d.err
	case <-ctx.Done():
		go func() {
			if d := <-done; d.err == nil {
				_ = d.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// stream opens one of the two streams of a connection to a port.
func stream(conn httpstream.Connection, kind string, port int32) (httpstream.Stream, error) {
	header := http.Header{}
	header.Set(corev1.StreamType, kind)
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	return conn.CreateStream(header)
}

// exchange asks for a page on a connection to the pod.
func (c *Client) exchange(ctx context.Context, on io.ReadWriter, page string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Close = true
	if err := request.Write(on); err != nil {
		return nil, err
	}
	answer, err := http.ReadResponse(bufio.NewReader(on), request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, c.most+1))
	if err == nil && int64(len(body)) > c.most {
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLong, c.most)
	}
	return body, err
}
