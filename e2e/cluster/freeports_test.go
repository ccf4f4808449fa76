// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"
	"slices"
	"testing"
)

func TestFreePorts(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	taken := listener.Addr().(*net.TCPAddr).Port
	ports, err := FreePorts(t.Context(), "127.0.0.1", 1000, taken)
	must(t, err)
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) != 1000 {
		t.Error("a port is there twice")
	}
	if ports[0] < firstPort || ports[999] > lastPort {
		t.Errorf("ports from %d to %d", ports[0], ports[999])
	}
	if slices.Contains(ports, taken) {
		t.Errorf("%d is taken", taken)
	}
	if _, err := FreePorts(t.Context(), "192.0.2.1", 1); err == nil {
		t.Error("ports of an address that this machine does not have")
	}
}
