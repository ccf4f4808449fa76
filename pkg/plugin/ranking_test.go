// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/nvml/simulated"
	"github.com/cleave-dra/cleave/pkg/records"
)

// anyCDI resolves everything.
type anyCDI struct{}

func (anyCDI) DeviceID(device string) string                                  { return device }
func (anyCDI) PartitionsID(device string) string                              { return device }
func (anyCDI) ClaimID(types.UID, *records.Device) string                      { return "" }
func (anyCDI) Ensure(context.Context, []string) error                         { return nil }
func (anyCDI) WriteClaim(context.Context, types.UID, []*records.Device) error { return nil }
func (anyCDI) HasClaim(types.UID) bool                                        { return true }
func (anyCDI) RemoveClaim(types.UID) error                                    { return nil }

// rankedService is a service on a simulated node, and what it publishes to.
func rankedService(t *testing.T, model string) (*service, *hardware, *publisher, *fakeHelper) {
	t.Helper()
	session, err := simulated.Open(t.Context(), model)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	store, err := records.OpenStore(records.NewDisk(), filepath.Join(dir, "claims"))
	if err != nil {
		t.Fatal(err)
	}
	locks, err := claims.OpenLocks(filepath.Join(dir, "locks"))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{config: validConfig(), ranking: newRanking(), metrics: newMetrics()}
	s.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: s.config.DriverName, Pool: s.config.NodeName}, BootID: "boot", Store: store, Locks: locks, Specs: anyCDI{},
		OnAllocate: func() { signal(s.ranking.changed) },
	})
	hw := &hardware{Session: session, policy: &v1alpha1.NodePolicy{}, held: s.engine.Records}
	hw.offer(nil)
	s.engine.SetHardware(hw, anyCDI{})
	p, h := newPublisher()
	return s, hw, p, h
}

// claimOn is a claim that was allocated devices.
func claimOn(uid string, devices ...string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)}}
	allocation := &resourceapi.AllocationResult{}
	for i, d := range devices {
		request := fmt.Sprintf("r%d", i)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: request, Exactly: &resourceapi.ExactDeviceRequest{}})
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: "gpu.cleave.dev", Pool: "node-1", Device: d,
		})
	}
	claim.Status.Allocation = allocation
	return claim
}

// told tells whether the service has heard that what claims hold has changed.
func (s *service) told() bool {
	select {
	case <-s.ranking.changed:
		return true
	default:
		return false
	}
}

func TestWholeGPUsArePublishedInTheOrderOfWhatIsFree(t *testing.T) {
	s, hw, p, h := rankedService(t, "rtx-pro-6000")
	name := func(i int) string { return hw.Node().GPUs[i].PCI.DeviceName() }
	order := func() string {
		var words []string
		for n := range strings.FieldsSeq(h.calls[len(h.calls)-1][1]) {
			i := slices.IndexFunc(hw.Node().GPUs, func(g gpu.GPU) bool { return g.PCI.DeviceName() == n })
			words = append(words, fmt.Sprint(i))
		}
		return strings.Join(words, " ")
	}
	s.publish(hw, p)
	p.advance(t.Context())
	steps := []struct {
		what    string
		do      func() error
		want    string
		changes int
	}{
		{"nothing", func() error { return nil }, "7 6 5 4 3 2 1 0", 0},
		{"a whole GPU is taken", func() error { _, err := s.engine.Prepare(t.Context(), claimOn("a", name(7))); return err }, "3 2 1 0 5 4 7 6", 1},
		{"a partition is taken", func() error { _, err := s.engine.Prepare(t.Context(), claimOn("b", name(0)+"-mig-14-9")); return err }, "5 4 7 6 3 2 1 0", 1},
		{"another of that GPU is", func() error { _, err := s.engine.Prepare(t.Context(), claimOn("c", name(0)+"-mig-14-6")); return err }, "5 4 7 6 3 2 1 0", 0},
		{"one of them is given back", func() error { return s.engine.Unprepare(t.Context(), records.Claim{UID: "b"}) }, "5 4 7 6 3 2 1 0", 0},
		{"all is given back", func() error {
			if err := s.engine.Unprepare(t.Context(), records.Claim{UID: "a"}); err != nil {
				return err
			}
			return s.engine.Unprepare(t.Context(), records.Claim{UID: "c"})
		}, "7 6 5 4 3 2 1 0", 1},
	}
	for _, step := range steps {
		before := len(h.calls)
		s.told()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if told := s.told(); told != (step.what != "nothing") {
			t.Errorf("%s: told of it: %t", step.what, told)
		}
		s.rank(t.Context(), hw, p)
		p.advance(t.Context())
		if diff := cmp.Diff(step.want, order()); diff != "" || len(h.calls)-before != step.changes {
			t.Errorf("%s: published %d times, want %d; order (-want +got):\n%s", step.what, len(h.calls)-before, step.changes, diff)
		}
		if step.changes == 1 {
			for i, slice := range h.calls[len(h.calls)-1] {
				if i != 1 && slice != h.calls[before-1][i] {
					t.Errorf("%s: slice %d changed, too", step.what, i)
				}
			}
		}
	}
}

func TestAdminAccessHoldsNoGPU(t *testing.T) {
	g := &gpu.GPU{PCI: gpu.PCIAddress{Bus: 1}}
	for admin, want := range map[bool]bool{true: true, false: false} {
		free := freeGPUs([]*records.Record{{Devices: []records.Device{{GPU: g.PCI.DeviceName(), AdminAccess: admin}}}})
		if free(g) != want || !free(&gpu.GPU{PCI: gpu.PCIAddress{Bus: 2}}) {
			t.Errorf("admin access %t: free %t, want %t", admin, free(g), want)
		}
	}
}

func TestTheOrderIsLookedAtOnceAfterABurstOfChangesAndNeverTooLate(t *testing.T) {
	const between = 10 * time.Millisecond
	for changes, want := range map[int]time.Duration{
		1:    rankAfter,
		10:   9*between + rankAfter,
		1000: rankAtMost - between + rankAfter, // it never stands still
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRanking()
			start := time.Now()
			for range changes {
				r.start()
				select {
				case <-r.due:
					if took := time.Since(start); took != want {
						t.Errorf("%d changes: the order was looked at after %s, want %s", changes, took, want)
					}
					return
				case <-time.After(between):
				}
			}
			<-r.due
			if took := time.Since(start); took != want {
				t.Errorf("%d changes: the order was looked at after %s, want %s", changes, took, want)
			}
		})
	}
}
