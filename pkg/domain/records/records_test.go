// SPDX-License-Identifier: Apache-2.0

package records

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// The golden files are what release 0.1 and the first one with shares write. Every later release must read them.
func TestFormat1(t *testing.T) {
	for name, r := range map[string]*Record{"format1.json": sample(uidA), "format1-shares.json": sharing(uidA)} {
		s := openStore(t)
		if err := s.Write(r); err != nil {
			t.Fatalf("Write: %v", err)
		}
		checkFormat(t, name, filepath.Join(s.Dir(), string(uidA)+".json"))
		got, err := s.Read(uidA)
		if err != nil {
			t.Fatalf("Read: %v", err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("%s: record (-want +got):\n%s", name, diff)
		}
	}
}

// checkFormat compares a file that was written with a golden one, which must never change once released.
func checkFormat(t *testing.T, name, file string) {
	t.Helper()
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", name), string(written))
}

// A claim may have 32 results, with names as long as the API takes them.
func TestStore_LargestClaim(t *testing.T) {
	s := openStore(t)
	r := sample(uidA)
	long := strings.Repeat("x", 253)
	r.Claim.Namespace, r.Claim.Name = long[:63], long
	device := r.Devices[0]
	device.Request, device.Pool = long[:63]+"/"+long[:63], long
	device.CDIDeviceIDs = []string{long + "/gpu=" + device.Device, long + "/claim=" + string(uidA)}
	r.Devices = nil
	for range 32 {
		r.Devices = append(r.Devices, device)
	}
	if err := s.Write(r); err != nil {
		t.Fatalf("Write: %v", err)
	}
	if _, err := s.Read(uidA); err != nil {
		t.Errorf("Read: %v", err)
	}
}

func TestRecordGPUs(t *testing.T) {
	r := &Record{Devices: []Device{{GPU: "c"}, {GPU: "a"}, {GPU: "c"}, {GPU: "b"}}}
	if diff := cmp.Diff([]string{"a", "b", "c"}, r.GPUs()); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestRecord_Ends(t *testing.T) {
	for name, tt := range map[string]struct {
		device                  Device
		withReset, beforeChange bool
	}{
		"whole":              {Device{}, false, false},
		"whole, released":    {Device{Released: true}, true, true},
		"observed":           {Device{AdminAccess: true}, true, true},
		"partition":          {Device{Partition: &gpu.Partition{}}, true, true},
		"observed partition": {Device{AdminAccess: true, Partition: &gpu.Partition{}}, true, true},
		"time slices":        {Device{Share: &Share{Kind: gpu.TimeSlice, Interval: "Long"}}, true, false},
		"MPS":                {Device{Share: &Share{Kind: gpu.MPS}}, true, false},
		"MPS, released":      {Device{Share: &Share{Kind: gpu.MPS}, Released: true}, true, true},
		"MPS of a partition": {Device{Share: &Share{Kind: gpu.MPS}, Partition: &gpu.Partition{}}, true, false},
	} {
		tt.device.GPU = "a"
		r := &Record{State: Releasing, Devices: []Device{tt.device, {GPU: "b"}}}
		got := []bool{r.EndsWithReset("a"), r.EndsBeforeChange("a")}
		if diff := cmp.Diff([]bool{tt.withReset, tt.beforeChange}, got); diff != "" {
			t.Errorf("%s: with a reset, before a change (-want +got):\n%s", name, diff)
		}
		r.Pods = []types.UID{"pod"}
		if r.EndsWithReset("a") || r.EndsBeforeChange("a") {
			t.Errorf("%s: it ends with processes of a pod", name)
		}
		if r.Pods, r.State = nil, Prepared; r.EndsWithReset("a") || r.EndsBeforeChange("a") {
			t.Errorf("%s: it ends although the claim has not", name)
		}
	}
}
