// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func TestPartitionShare_Limits(t *testing.T) {
	b := newPartBed(t)
	tests := map[string]struct {
		device, params string
		want           string
	}{
		"less than a multiprocessor": {b.mps(), `"mps":{"activeThreadPercentage":1}`,
			"1% of partition " + b.server() + " (3g.40gb) is less than one of its 60 multiprocessors: request 2% or more"},
		"an interval": {b.slice(), `"timeSlice":{"interval":"Long"}`, "a GPU has one interval for all of its partitions"},
		"time slices": {b.mps(), `"timeSlice":{}`, "but device " + b.mps() + " is of type mig-mps"},
		"MPS":         {b.slice(), `"mps":{}`, "but device " + b.slice() + " is of type mig-timeslice"},
		"two of them": {b.mps(), `"mps":{"activeThreadPercentage":2}`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := deviceClaim("a", tt.device)
			allocation := &claim.Status.Allocation.Devices
			allocation.Config = append(allocation.Config, opaque(testDriver, fromClaim, shareConfig(tt.params), allocation.Results[0].Request))
			devices, err := b.Prepare(t.Context(), claim)
			if tt.want != "" {
				wantError(t, err, tt.want)
				b.want(nil, nil, nil)
				return
			}
			if err != nil || devices[0].Share.MPS.ThreadPercentage != 2 {
				t.Errorf("got %+v, %v, want 2 percent", devices, err)
			}
			b.unprepare("a")
		})
	}
}

// Amounts are those of one partition: another one has its own.
func TestPartitionShare_Amounts(t *testing.T) {
	b := newPartBed(t)
	share := func(uid types.UID, device string, amounts ...string) error {
		r := shareResult("r", 0, gpu.MPS, amounts...)
		r.Device = device
		_, err := b.Prepare(t.Context(), claimOf(uid, r))
		return err
	}
	must(t, errors.Join(share("a", b.mps(), "cores=60", "memory=20Gi"), share("b", b.name(0, 9, 0)+"-mps", "cores=60", "memory=20Gi")))
	wantError(t, share("c", b.mps(), "cores=50"), "would take cores 110 of 100 together")
	wantError(t, share("c", b.mps(), "memory=30Gi"), "would take memory")
	if err := share("c", b.mps(), "cores=40", "memory=10Gi"); err != nil {
		t.Error(err)
	}
}

// By NVIDIA's parameters the claim has the partition, and an MPS server in it, alone.
func TestPartitionShare_MigDeviceConfig(t *testing.T) {
	b := openSimBed(t, t.TempDir(), newSimNode(t, "hgx-h100"), as(compatibleID))
	b.use(sharedPartitions())
	mps := `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":%s,"defaultPinnedDeviceMemoryLimit":"4Gi"}}`
	claim := func(uid types.UID, threads string) []records.Device {
		t.Helper()
		c := deviceClaim(uid, b.server())
		allocation := &c.Status.Allocation.Devices
		allocation.Config = append(allocation.Config, opaque(testDriver, fromClaim, nvidiaConfig("MigDeviceConfig", strings.Replace(mps, "%s", threads, 1))))
		devices, err := b.Prepare(t.Context(), forDriver(compatibleID.Driver, c))
		if threads == "1" {
			wantError(t, err, "less than one of its 60 multiprocessors")
			return nil
		}
		must(t, err)
		return devices
	}
	claim("a", "1")
	b.want(nil, nil, nil)
	d := claim("a", "50")[0]
	if d.Partition.UUID == "" || !d.Share.Exclusive || d.Share.MPS.ThreadPercentage != 50 || d.Share.MPS.Memory != 4*gi {
		t.Errorf("got %+v with share %+v", d.Partition, d.Share)
	}
	b.want(list("0 9@4"), list("a"), list("a"))
	equal(t, "calls", list("StartMPS "+b.server()+" a 50% 4Gi"), b.sharing.took())
	wantRefused(t, b.Preparer, forDriver(compatibleID.Driver, deviceClaim("b", b.mps())), "ns/claim-a (a)")
	b.unprepare("a")
	b.want(nil, nil, nil)
	b.wantServed()
}
