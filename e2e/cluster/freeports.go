// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are chosen from below those that Linux gives to connections (net.ipv4.ip_local_port_range, from 32768) and to services
// of type NodePort (from 30000): a program that starts, or starts again, finds its port as free as it was when it was chosen.
const (
	firstPort = 10_000
	lastPort  = 29_999
)

// FreePorts are n TCP ports of this machine that differ, and that nobody listens at on a host, "" for all addresses. wanted are
// taken first, where they are free.
func FreePorts(ctx context.Context, host string, n int, wanted ...int) (_ []int, err error) {
	var held []net.Listener // until all are chosen, so that they differ
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	var ports []int
	for tried := 0; len(ports) < n; tried++ {
		port := firstPort + rand.N(lastPort-firstPort+1)
		if tried < len(wanted) {
			port = wanted[tried]
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			held, ports = append(held, l), append(ports, port)
		case tried > 100+n:
			return nil, fmt.Errorf("find a free port between %d and %d: %w", firstPort, lastPort, err)
		}
	}
	return ports, nil
}

// FreePort is one of FreePorts.
func FreePort(ctx context.Context, host string) (int, error) {
	ports, err := FreePorts(ctx, host, 1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}
