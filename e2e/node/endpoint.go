// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// endpoint is the address at which a plugin serves metrics and health.
type endpoint string

// newEndpoint finds a free one.
func newEndpoint(ctx context.Context) (endpoint, error) {
	port, err := cluster.FreePort(ctx, "127.0.0.1")
	return endpoint(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))), err
}

// MetricsPort is the port at which a node's plugin serves them, on the loopback address.
func MetricsPort(n *Node) (int32, error) {
	_, text, err := net.SplitHostPort(string(n.endpoint))
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	return int32(port), err
}

// ok is nil if the plugin answers with success, else what it says.
func (e endpoint) ok(ctx context.Context, path string) error {
	_, err := e.read(ctx, path)
	return err
}

// metrics by name and labels.
func (e endpoint) metrics(ctx context.Context) (map[string]string, error) {
	text, err := e.read(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if at := strings.LastIndex(line, " "); at > 0 && !strings.HasPrefix(line, "#") {
			values[line[:at]] = strings.TrimSpace(line[at:])
		}
	}
	return values, nil
}

// read is the plugin's answer; one that is no success is the error.
func (e endpoint) read(ctx context.Context, path string) (string, error) {
	status, text, err := process.Read(ctx, "http://"+string(e)+path, "")
	if err == nil && status != http.StatusOK {
		err = errors.New(strings.TrimSpace(text))
	}
	if err != nil {
		return "", err
	}
	return text, nil
}
