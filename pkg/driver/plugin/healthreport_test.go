// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// unhealthy are the devices of a report that are not well, as "pool/device: message".
func unhealthy(r kubeletplugin.DeviceHealthReport) []string {
	var all []string
	for _, d := range r.Devices {
		if d.Health != kubeletplugin.HealthStatusHealthy {
			all = append(all, fmt.Sprintf("%s/%s %s: %s", d.PoolName, d.DeviceName, d.Health, d.Message))
		}
	}
	return all
}

func TestWatchHealthStatus(t *testing.T) {
	watchHealth(t, policy.Health{Effect: "None"}, func(b *healthBed) {
		ctx, cancel := context.WithCancel(b.t.Context())
		reports := make(chan kubeletplugin.DeviceHealthReport)
		ended := make(chan error)
		p := &plugin{health: b.health}
		go func() { ended <- p.WatchHealthStatus(ctx, reports) }()
		first := <-reports
		devices := 8 * len(b.shapes(0, every))
		if got := unhealthy(first); len(first.Devices) != devices || got != nil {
			t.Errorf("the first report has %d devices, want %d, and of them unwell %v", len(first.Devices), devices, got)
		}
		for range 5 {
			last := time.Now()
			if r := <-reports; len(r.Devices) != devices || time.Since(last) > 20*time.Second || r.Devices[0].LastUpdated.IsZero() {
				t.Errorf("after %s: %d devices as of %s", time.Since(last), len(r.Devices), r.Devices[0].LastUpdated)
			}
		}
		b.must(b.sim.Hardware().RaiseXID(1, 119))
		raised := time.Now()
		var want []string
		for _, s := range b.shapes(1, every) {
			want = append(want, "node-1/"+s+" Unhealthy: XID 119: GPU system processor error")
		}
		if diff := cmp.Diff(want, unhealthy(<-reports)); diff != "" || time.Since(raised) > 2*time.Second {
			t.Errorf("after %s (-want +got):\n%s", time.Since(raised), diff)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

func TestWatchHealthStatus_Stale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newGPUHealth("node-1", func() {})
		ctx, cancel := context.WithCancel(t.Context())
		reports := make(chan kubeletplugin.DeviceHealthReport, 100)
		go func() { _ = h.watch(ctx, reports) }()
		<-time.After(50 * time.Second)
		synctest.Wait()
		if got := len(reports); got != 3 {
			t.Errorf("%d reports in 50 s while the driver is waited for, want one every 20 s", got)
		}
		session, err := simulated.Open(t.Context(), "t4")
		if err != nil {
			t.Fatal(err)
		}
		h.report(&policy.Node{Node: session.Node()}, time.Now())
		<-time.After(5 * time.Minute)
		synctest.Wait()
		if got := len(reports); got != 4 {
			t.Errorf("%d reports though nobody has looked for five minutes, want no more than the one", got-3)
		}
		cancel()
	})
}
