// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// In a rolling update the kubelet asks the new plugin before that has read the hardware.
func TestPrepare_PluginStarting(t *testing.T) {
	t.Run("hardware is found", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			e := New(Options{Identity: testID, BootID: bootNow, Store: b.Ledger.store, Locks: b.Ledger.locks, Specs: b.specs.under, API: &fakeAPI{}})
			go func() {
				<-time.After(5 * time.Second)
				e.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
			}()
			if _, err := e.Prepare(t.Context(), deviceClaim("a", b.name(0))); err != nil {
				t.Errorf("Prepare = %v, want it to wait for the hardware", err)
			}
		})
	})
	t.Run("there is none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newSimBed(t, "hgx-h100")
			e := New(Options{Identity: testID, BootID: bootNow, Store: b.Ledger.store, Locks: b.Ledger.locks, Specs: b.specs.under, API: &fakeAPI{}})
			started := time.Now()
			for _, reason := range []error{nil, errors.New("no driver")} {
				want := errStarting.Error()
				if reason != nil {
					e.SetWaiting(reason)
					want = reason.Error()
				}
				if _, err := e.Prepare(t.Context(), deviceClaim("a", b.name(0))); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Prepare = %v, want %q", err, want)
				}
			}
			if took := time.Since(started); took != startTimeout {
				t.Errorf("waited %s in all, want %s", took, startTimeout)
			}
		})
	})
}
