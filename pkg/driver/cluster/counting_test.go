// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What API servers make of a device with their feature gates off.
func dropCounters(s *resourceapi.ResourceSlice) error {
	s.Spec.Devices[0].ConsumesCounters = nil
	return nil
}

func dropShares(s *resourceapi.ResourceSlice) error {
	s.Spec.Devices[0].AllowMultipleAllocations = nil
	c := s.Spec.Devices[0].Capacity[probe]
	c.RequestPolicy = nil
	s.Spec.Devices[0].Capacity[probe] = c
	return nil
}

func dropAll(s *resourceapi.ResourceSlice) error { return errors.Join(dropCounters(s), dropShares(s)) }

func refuse(*resourceapi.ResourceSlice) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceSlice"}, "x",
		field.ErrorList{field.NotFound(field.NewPath("spec", "devices").Index(0).Child("consumesCounters").Index(0).Child("counterSet"), "counting")})
}

// denied is what a policy says.
func denied(*resourceapi.ResourceSlice) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceSlice"}, "x", nil)
}

func forbid(*resourceapi.ResourceSlice) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}, "", errors.New("no"))
}

func noDryRun(*resourceapi.ResourceSlice) error {
	return apierrors.NewBadRequest("admission webhook does not support dry run")
}

func webhookFails(*resourceapi.ResourceSlice) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook"))
}

// countingOf asks an API server of a release.
func countingOf(t *testing.T, release string, answer func(*resourceapi.ResourceSlice) error) (c *Counting, upgrade func(release string)) {
	t.Helper()
	client, _ := answering(t, answer)
	c = NewCounting(client, "gpu.cleave.dev", "node-1")
	var now atomic.Pointer[apiversion.Info]
	upgrade = func(release string) { now.Store(&apiversion.Info{GitVersion: release}) }
	c.serverVersion = func(context.Context) (*apiversion.Info, error) { return now.Load(), nil }
	upgrade(release)
	return c, upgrade
}

func TestCounting(t *testing.T) {
	for name, test := range map[string]struct {
		release                  string
		answer                   func(*resourceapi.ResourceSlice) error
		shares, beside, counters string // part of the reason; empty for none
	}{
		"today":                    {release: "v1.37.1", answer: keep},
		"vendor":                   {release: "v1.36.3+k3s1", answer: keep},
		"first of all":             {release: "v1.36.2", answer: keep},
		"shares forgotten":         {release: "v1.36.1-eks-1234", answer: keep, beside: "1.36.2 or later"},
		"gates off by default":     {release: "v1.35.4-gke.1", answer: dropAll, shares: "1.35.4", beside: "1.35.4", counters: "DRAPartitionableDevices"},
		"partitions by hand":       {release: "v1.35.4", answer: dropShares, shares: "1.35.4", beside: "1.36.2"},
		"other API of counters":    {release: "v1.34.4", answer: refuse, shares: "1.34.4", beside: "1.34.4", counters: "1.34.4"},
		"gate of counters is off":  {release: "v1.37.1", answer: dropCounters, counters: "DRAPartitionableDevices"},
		"nobody may ask":           {release: "v1.36.1", answer: forbid, beside: "1.36.2 or later"},
		"denied by a policy":       {release: "v1.37.1", answer: denied},
		"webhook without dry runs": {release: "v1.37.1", answer: noDryRun},
		"the same, older":          {release: "v1.35.4", answer: noDryRun, shares: "1.35.4", beside: "1.35.4", counters: "1.35.4"},
		"gate of shares is off":    {release: "v1.37.1", answer: dropShares, shares: "DRAConsumableCapacity"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := countingOf(t, test.release, test.answer)
			if err := c.Wait(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			says := func(what string, got error, want string) {
				if (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
					t.Errorf("%s: got %v, want %q in it", what, got, want)
				}
			}
			says("shares", c.Counted().Shares, test.shares)
			says("shares beside other tiers", c.Counted().SharesBeside, test.beside)
			says("counters", c.Counted().Counters, test.counters)
		})
	}
}

// It waits for an API server that does not answer, follows upgrades and gates, and keeps the last answer while it is away.
func TestCounting_Follow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := func(*resourceapi.ResourceSlice) error { return errors.New("away") }
		var answer atomic.Pointer[func(*resourceapi.ResourceSlice) error]
		answers := func(as func(*resourceapi.ResourceSlice) error) { answer.Store(&as) }
		answers(away)
		c, upgrade := countingOf(t, "v1.36.1", func(s *resourceapi.ResourceSlice) error { return (*answer.Load())(s) })
		time.AfterFunc(5*time.Second, func() { answers(dropCounters) })
		began := time.Now()
		if err := c.Wait(t.Context(), 2*time.Second); err != nil || time.Since(began) < 5*time.Second {
			t.Fatalf("%v after %s", err, time.Since(began))
		}
		var changes atomic.Int64
		go c.Follow(t.Context(), 5*time.Minute, func() { changes.Add(1) })
		for _, step := range []struct {
			name    string
			change  func()
			after   time.Duration
			changes int64
			want    [2]bool // shares beside other tiers, and counters
		}{
			{"nothing", func() {}, time.Hour, 0, [2]bool{}},
			{"upgraded", func() { upgrade("v1.36.2") }, 6 * time.Minute, 1, [2]bool{true}},
			{"away", func() { answers(away) }, time.Hour, 0, [2]bool{true}},
			{"gate on", func() { answers(keep) }, 6 * time.Minute, 1, [2]bool{true, true}},
			{"away, and asked", func() { answers(away); c.Doubt() }, time.Minute, 0, [2]bool{true, true}},
			{"back, with the gate off", func() { answers(dropCounters) }, 25 * time.Second, 1, [2]bool{true}},
			{"webhook fails", func() { answers(webhookFails); c.Doubt() }, time.Minute, 0, [2]bool{true}},
			{"webhook fails after an upgrade", func() { upgrade("v1.37.1"); c.Doubt() }, time.Minute, 0, [2]bool{true}},
			{"webhook fails after a downgrade to other defaults", func() { upgrade("v1.35.4"); c.Doubt() }, time.Minute, 1, [2]bool{}},
			{"gate on again", func() { upgrade("v1.37.1"); answers(keep) }, 6 * time.Minute, 1, [2]bool{true, true}},
			{"gate off, slice came back without", func() { answers(dropCounters); c.Doubt(); c.Doubt() }, 0, 1, [2]bool{true}},
		} {
			changes.Store(0)
			step.change()
			<-time.After(step.after)
			synctest.Wait()
			if got := c.Counted(); changes.Load() != step.changes || (got.SharesBeside == nil) != step.want[0] || (got.Counters == nil) != step.want[1] {
				t.Errorf("%s: %d changes, %v; want %d, and shares and counters %v", step.name, changes.Load(), got, step.changes, step.want)
			}
		}
	})
}

// hangingServer is an API server of release 1.37 that answers the creation of a slice late, after an admission webhook that hangs. It
// keeps no counters.
type hangingServer struct {
	late   time.Duration
	status int
}

func (s *hangingServer) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, body string) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	if r.URL.Path == "/version" {
		return answer(http.StatusOK, `{"gitVersion":"v1.37.1"}`)
	}
	select {
	case <-time.After(s.late):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if s.status != http.StatusCreated {
		return answer(s.status, "no")
	}
	return answer(s.status, `{"kind":"ResourceSlice","apiVersion":"resource.k8s.io/v1","spec":{"devices":[{"name":"counting"}]}}`)
}

// Slices are written after a webhook's timeout where its failures are ignored, and so is this one. Who does not answer at all keeps no
// plugin from its work: what its release counts is taken until it does.
func TestCounting_Unanswered(t *testing.T) {
	for name, test := range map[string]struct {
		late      time.Duration
		status    int
		after     time.Duration
		byRelease bool
	}{
		"webhook's default timeout": {10 * time.Second, http.StatusCreated, 10 * time.Second, false},
		"longest timeout":           {30 * time.Second, http.StatusCreated, 30 * time.Second, false},
		"hangs for good":            {time.Hour, http.StatusCreated, dryRunTimeout, true},
		"unavailable":               {0, http.StatusServiceUnavailable, unansweredAtMost, true},
		"gateway's timeout":         {time.Second, http.StatusGatewayTimeout, unansweredAtMost + time.Second, true},
	} {
		bubble(t, name, func(t *testing.T) {
			server := &hangingServer{test.late, test.status}
			client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://api", QPS: -1}, &http.Client{Transport: server})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			c, began := NewCounting(client, "gpu.cleave.dev", "node-1"), time.Now()
			if err := c.Wait(ctx, 2*time.Second); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != test.after {
				t.Errorf("it waits %s, want %s", took, test.after)
			}
			if got := c.Counted().Counters == nil; got != test.byRelease {
				t.Errorf("counters are kept: %t, want %t", got, test.byRelease)
			}
			server.late, server.status = 0, http.StatusCreated
			if news, err := c.ask(ctx); err != nil || news != test.byRelease || c.Counted().Counters == nil {
				t.Errorf("once it answers: news %t, %v, %v; want what it says", news, err, c.Counted())
			}
		})
	}
}

func TestCounting_ContextCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, _ := countingOf(t, "v1.37.1", func(*resourceapi.ResourceSlice) error {
		cancel()
		return errors.New("away")
	})
	if err := c.Wait(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
