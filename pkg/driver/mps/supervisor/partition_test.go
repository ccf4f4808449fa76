// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// Each partition has a daemon of its own. Its GPU keeps its compute mode, also where a record is lost: the driver is not even opened.
func TestPartitions(t *testing.T) {
	h, config := newFakeHost(), testConfig(t)
	s := h.start(t, config)
	lower, upper := requestFor("a", 1), requestFor("b", 1)
	lower.Device, lower.UUID = lower.Device+"-mig-9-0", "MIG-0d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2"
	upper.Device, upper.UUID = upper.Device+"-mig-9-4", "MIG-1d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2"
	h.modes[lower.PCI] = 3 // as another process set it
	h.noDriver = gpu.ErrLibraryNotFound
	first, second := ensure(t, s, lower), ensure(t, s, upper)
	if h.starts != 2 || first.PipeDir == second.PipeDir || first.ShmDir == second.ShmDir {
		t.Errorf("%d daemons have %+v and %+v", h.starts, first, second)
	}
	release(t, s, lower)
	wantClaims(t, s, "b")
	h.stop()
	must(t, os.WriteFile(recordOf(config.Dir, upper.Device), []byte("{"), 0o600))
	s = h.start(t, config)
	defer func() { h.stop() }()
	must(t, s.Retain(t.Context(), upper.Device, testOwner, nil))
	if h.modes[lower.PCI] != 3 || len(h.processes) > 0 {
		t.Errorf("compute mode %d and processes %v are left", h.modes[lower.PCI], h.processes)
	}
}

func TestCheckRequest_Partitions(t *testing.T) {
	const uuid = "MIG-1d74e1a5-d0e2-4b0a-bd49-95a3a9d3d7b2"
	tests := map[string]struct {
		device, uuid string
		want         string
	}{
		"a partition":           {"gpu-0000-01-00-0-mig-9-4", uuid, ""},
		"the GPU's UUID":        {"gpu-0000-01-00-0-mig-9-4", testUUID, "is not the UUID of partition gpu-0000-01-00-0-mig-9-4, such as MIG-"},
		"a partition's UUID":    {"gpu-0000-01-00-0", uuid, "is not the UUID of GPU gpu-0000-01-00-0, such as GPU-"},
		"a shared device":       {"gpu-0000-01-00-0-mig-9-4-mps", uuid, "is not the device name"},
		"of no start":           {"gpu-0000-01-00-0-mig-9", uuid, "is not the device name"},
		"with zeros":            {"gpu-0000-01-00-0-mig-09-4", uuid, "is not the device name"},
		"a path":                {"gpu-0000-01-00-0-mig-9-4/..", uuid, "is not the device name"},
		"too long for a socket": {"gpu-0000-01-00-0-mig-123456789-1234567", uuid, "is not the device name"},
	}
	for name, tt := range tests {
		r := requestFor("a", 1)
		r.Device, r.UUID = tt.device, tt.uuid
		err := checkRequest(r)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
	p := pathsOf("/"+strings.Repeat("x", maxDir-1), strings.Repeat("x", maxDevice))
	for _, path := range []string{p.pipe + "/" + privilegedSocket, p.clients + "/" + controlSocket} {
		if len(path) > 107 {
			t.Errorf("%s has %d characters: no socket can have it (unix(7))", path, len(path))
		}
	}
}
