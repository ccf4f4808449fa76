// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// checkGolden compares what a collector gives with a file of testdata.
func checkGolden(t *testing.T, name string, c prometheus.Collector) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *golden.Update {
		registry := prometheus.NewRegistry()
		registry.MustRegister(c)
		if err := prometheus.WriteToTextfile(path, registry); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := testutil.CollectAndCompare(c, file); err != nil {
		t.Error(err)
	}
}

// TestUsage_Golden is a node of four GPUs: partitions, a whole GPU, time slices of two claims, one of which two pods use, and an
// unhealthy GPU.
func TestUsage_Golden(t *testing.T) {
	session, err := simulated.Open(t.Context(), "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	inventory := *session.Node()
	inventory.GPUs = inventory.GPUs[:4]
	offered := policy.Apply(&v1alpha1.NodePolicy{}, &inventory, policy.Capabilities{})
	device := func(i int, suffix string) records.Device {
		g := &inventory.GPUs[i]
		return records.Device{Pool: "node-1", GPU: g.PCI.DeviceName(), Device: g.PCI.DeviceName() + suffix, UUID: g.UUID}
	}
	claim := func(name string, d records.Device) *records.Record {
		return &records.Record{Claim: records.Claim{Namespace: "team", Name: name, UID: types.UID(name)}, Devices: []records.Device{d}}
	}
	whole, mig, notebook, other := device(0, ""), device(1, "-mig-19-6"), device(2, "-timeslice"), device(2, "-timeslice")
	mig.Partition = &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}, GI: 9, UUID: "MIG-1"}
	notebook.Share = &records.Share{ID: "1", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30}
	other.Share = &records.Share{ID: "2", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 << 30}
	leaving := claim("leaving", device(1, "-mig-19-0"))
	leaving.State = records.Releasing
	leaving.Devices[0].Partition = &gpu.Partition{ProfileID: 19, Placement: gpu.Placement{Start: 0, Size: 1}}
	all := []*records.Record{claim("train", whole), claim("small", mig), claim("notebook", notebook), claim("shared", other), leaving}

	c := &usageCollector{}
	if n := testutil.CollectAndCount(c); n != 0 {
		t.Errorf("%d series before records were read, want none", n)
	}
	c.source.Store(&usageSource{
		records: func() []*records.Record { return all },
		pods: func(uid types.UID) []string {
			return map[types.UID][]string{"train": {"train-0"}, "small": {"small-0"}, "notebook": {"nb-1"}, "shared": {"nb-2", "nb-3"}}[uid]
		},
		inventory: func() *gpu.Node { return &inventory },
	})
	checkGolden(t, "usage-unpublished.prom", c)
	c.published.Store(&controller.View{Node: offered, Taints: []nodeslices.Taint{
		{Device: inventory.GPUs[3].PCI.DeviceName(), Key: nodeslices.TaintUnhealthy, Value: "xid-79"},
		{Device: inventory.GPUs[3].PCI.DeviceName() + "-mps", Key: nodeslices.TaintUnhealthy, Value: "xid-79"},
	}})
	checkGolden(t, "usage.prom", c)
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// All series whose labels are known exist before anything has happened.
func TestMetrics_ExistFromTheStart(t *testing.T) {
	m := newMetrics()
	for want, c := range map[int]prometheus.Collector{
		2 * 6:              m.claims,
		2 * len(reasons()): m.errors,
		3:                  m.mpsEvents,
		1:                  m.policyFailures,
		2 * 3:              m.failing,
	} {
		if got := testutil.CollectAndCount(c); got != want {
			t.Errorf("%T has %d series, want %d", c, got, want)
		}
	}
}

func TestReasonOf(t *testing.T) {
	tests := map[string][]error{
		reasonDriver:   {claims.ErrNoDriver},
		reasonInvalid:  {claims.ErrInvalid},
		reasonTaken:    {claims.ErrAllocated},
		reasonBusy:     {gpu.ErrInUse, &claims.InUseError{Device: "d"}},
		reasonGPU:      {gpu.ErrLost, gpu.ErrReplaced, gpu.ErrInsufficientResources},
		reasonMPS:      {mps.ErrUnavailable, errMPSOff},
		reasonTimeout:  {context.DeadlineExceeded, context.Canceled},
		reasonDisk:     {&fs.PathError{Err: errors.New("no")}, syscall.ENOSPC},
		reasonOtherErr: {errors.New("no")},
	}
	if len(tests) != len(reasons()) {
		t.Errorf("%d reasons are tested of %d", len(tests), len(reasons()))
	}
	for want, errs := range tests {
		for _, err := range errs {
			if got := reasonOf(fmt.Errorf("prepare: %w", err)); got != want {
				t.Errorf("%v: got reason %s, want %s", err, got, want)
			}
		}
	}
}

func TestFailing(t *testing.T) {
	now := time.Unix(0, 0)
	f := newFailing(func() time.Time { return now })
	failed := errors.New("no")
	state := func(prepare, unprepare, prepareSeconds, unprepareSeconds int) {
		t.Helper()
		want := []string{
			fmt.Sprintf("cleave_claims_failing{operation=prepare} %d", prepare), "cleave_claims_failing{operation=release} 0",
			fmt.Sprintf("cleave_claims_failing{operation=unprepare} %d", unprepare),
			fmt.Sprintf("cleave_claims_failing_seconds{operation=prepare} %d", prepareSeconds), "cleave_claims_failing_seconds{operation=release} 0",
			fmt.Sprintf("cleave_claims_failing_seconds{operation=unprepare} %d", unprepareSeconds),
		}
		if diff := cmp.Diff(want, series(t, f)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	state(0, 0, 0, 0)
	f.note(prepareOperation, "a", failed)
	now = now.Add(time.Minute)
	f.note(prepareOperation, "a", failed)
	f.note(prepareOperation, "b", failed)
	f.note(unprepareOperation, "c", failed)
	now = now.Add(time.Minute)
	state(2, 1, 120, 60)
	f.note(prepareOperation, "b", nil)
	f.note(unprepareOperation, "a", nil) // its pod is gone
	state(0, 1, 0, 60)
	now = now.Add(forgetAfter) // the kubelet does not try any more
	state(0, 0, 0, 0)
}
