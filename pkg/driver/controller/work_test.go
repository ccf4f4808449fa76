// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// The active policy is written when it changes, and again after a failure.
func TestWorkRunner_Keep(t *testing.T) {
	full := errors.New("no space left on device")
	var kept []string
	var err error
	o := &Options{KeepPolicy: func(p *Policy) error {
		kept = append(kept, p.Name)
		return err
	}}
	r := workRunner{kept: &Policy{Name: "before", Policy: &v1alpha1.NodePolicy{}}} // as after a restart
	for _, step := range []struct {
		name string
		err  error
		want []string
	}{
		{"before", nil, nil},
		{"new", full, []string{"new"}},
		{"new", nil, []string{"new"}},
		{"new", nil, nil},
		{"before", nil, []string{"before"}},
	} {
		kept, err = nil, step.err
		r.start(t.Context(), o, r.keep(&Policy{Name: step.name, Policy: &v1alpha1.NodePolicy{}}), func() {})
		r.await(t.Context(), time.Time{})
		if !slices.Equal(kept, step.want) {
			t.Errorf("%s, %v: wrote %q, want %q", step.name, step.err, kept, step.want)
		}
	}
}

// A GPU is added that does not answer, as the search of the driver's files does not. Others' health does not wait for that, and the GPU is
// not offered before its limits are known: a claim on it would stay without one.
func TestLoop_AddedGPUHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "hgx-h100")
		all := f.inventory
		without := *all
		without.GPUs = all.GPUs[:7]
		f.inventory = &without
		added := all.GPUs[7].PCI
		l.Begin(t.Context())
		go func() { _ = l.Run(t.Context()) }()
		synctest.Wait()
		f.took()
		check := func(when, want string, offered bool) {
			t.Helper()
			<-time.After(workTime)
			synctest.Wait()
			if got := f.took(); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
			if got := slices.Contains(slices.Concat(read(f, &f.slices)...), added.DeviceName()); got != offered {
				t.Errorf("%s: the GPU is offered: %t, want %t", when, got, offered)
			}
		}
		hangs := make(chan struct{})
		f.set(func() { f.hangs, f.inventory = hangs, all })
		l.Mark(Inventory)
		check("GPU added", "syncInventory", false)
		f.set(func() { f.occupied = []string{all.GPUs[0].PCI.DeviceName()} })
		l.Mark(Health)
		check("another's state changes", "publish", false)
		f.set(func() { f.hangs = nil })
		close(hangs)
		check("the driver answers", "recover leaveMIG layouts publish", true)
		if !l.observed.MemoryLimits[added] {
			t.Error("its limit is not known")
		}
	})
}

// Work that was planned for one policy waits for the lock of a GPU while another policy comes: it is done for the first. The second is
// not applied before what the first offered is withdrawn, and then by work of its own.
func TestLoop_PolicyChangesBeforeLayouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "hgx-h100")
		rules := "{mig: {layout: {1g.10gb: 7}}}"
		path := filepath.Join(t.TempDir(), "default.yaml")
		l.Sources.Policies = func() (*policy.Set, error) {
			if err := os.WriteFile(path, []byte(policyHead+"rules: ["+read(f, &rules)+"]"), 0o600); err != nil {
				return nil, err
			}
			return policy.Load(filepath.Dir(path), policy.Format{})
		}
		l.Begin(t.Context())
		go func() { _ = l.Run(t.Context()) }()
		locked := make(chan struct{})
		check := func(when string, wait time.Duration, want ...bool) {
			t.Helper()
			<-time.After(wait)
			synctest.Wait()
			if got := read(f, &f.laidOut); !slices.Equal(got, want) {
				t.Errorf("%s: layouts were applied for %v, want %v", when, got, want)
			}
		}
		check("at the start", 0, true)
		f.set(func() { f.locked = locked })
		l.Mark(Allocations)
		check("locked", allocationsSettle+workTime, true)
		f.set(func() { rules = "{tiers: [exclusive]}" })
		l.Mark(Policies)
		check("another policy", workTime, true)
		f.set(func() { f.locked = nil })
		close(locked)
		check("unlocked", 0, true, true)
		check("withdrawn", 2*withdrawSettle, true, true, false)
	})
}

// Something stays unfinished, and each attempt to finish it takes long, as where many processes are looked at. Between the attempts a
// requested reset begins, and layouts are applied.
func TestLoop_UnfinishedForLong(t *testing.T) {
	for name, tt := range map[string]struct {
		recover, layouts time.Duration
		recoveries       int // in ten minutes
	}{
		"short":        {0, 0, 60},
		"long":         {finishEvery + 2*time.Second, 0, 27},
		"layouts long": {0, finishEvery + 2*time.Second, 50},
		"both long":    {finishEvery + 2*time.Second, finishEvery + 2*time.Second, 25},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, f := newFakeLoop(t, "dgx-a100")
				l.ReconcileEvery = time.Hour
				f.unfinished, f.recoverTakes, f.layoutsTake, f.modeErr = true, tt.recover, tt.layouts, gpu.ErrInUse
				l.Begin(t.Context())
				go func() { _ = l.Run(t.Context()) }()
				<-time.After(time.Minute)
				f.took()
				reset := f.inventory.GPUs[2].PCI.DeviceName()
				f.set(func() { f.state.Node.Reset = reset })
				l.Mark(Cluster)
				<-time.After(10 * time.Minute)
				calls := f.took()
				if !strings.Contains(calls, "mode "+reset) || !strings.Contains(calls, "layouts") {
					t.Errorf("got %q, want the reset and layouts", calls)
				}
				if got := strings.Count(calls, "recover"); got < tt.recoveries-3 || got > tt.recoveries+3 {
					t.Errorf("%d recoveries, want some %d", got, tt.recoveries)
				}
			})
		})
	}
}

// A GPU is added that does not answer. It is offered when it does, for which it is asked again soon, or once something of it turns out to
// be allocated, and then it stays.
func TestLoop_AddedGPUUnanswered(t *testing.T) {
	for name, has := range map[string]bool{"free": false, "allocated": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, f := newFakeLoop(t, "hgx-h100")
				all := f.inventory
				without, added := *all, all.GPUs[7].PCI
				without.GPUs = all.GPUs[:7]
				f.inventory = &without
				l.Begin(t.Context())
				go func() { _ = l.Run(t.Context()) }()
				synctest.Wait()
				f.took()
				check := func(when, want string, offered bool) {
					t.Helper()
					synctest.Wait()
					if got := f.took(); got != want {
						t.Errorf("%s: got %q, want %q", when, got, want)
					}
					if got := strings.Contains(fmt.Sprint(read(f, &f.slices)), added.DeviceName()); got != offered {
						t.Errorf("%s: the GPU is offered: %t, want %t", when, got, offered)
					}
				}
				f.set(func() { f.inventory, f.limitErr = all, gpu.ErrHangs })
				l.Mark(Inventory)
				check("GPU added", "syncInventory limits recover leaveMIG layouts publish", false)
				l.Mark(Health)
				check("the health of GPUs changes", "limits", false)
				<-time.After(finishEvery + pollEvery)
				check("later", "limits", false)
				if has {
					f.set(func() { f.records = []*records.Record{{Devices: []records.Device{{GPU: added.DeviceName()}}}} })
					l.Mark(Allocations)
					<-time.After(allocationsSettle)
					check("allocated", "recover leaveMIG layouts publish", true)
					f.set(func() { f.records = nil })
					l.Mark(Allocations)
					<-time.After(allocationsSettle)
					check("no longer", "publish leaveMIG", true)
					if l.observed.MemoryLimits[added] || !l.observed.MemoryLimits[all.GPUs[0].PCI] {
						t.Errorf("memory limits %v, want that of the GPU unknown, and the others' as before", l.observed.MemoryLimits)
					}
				}
				f.set(func() { f.limitErr = nil })
				l.Mark(Health)
				check("it answers", map[bool]string{false: "recover leaveMIG layouts publish", true: "layouts publish"}[has], true)
				if !l.observed.MemoryLimits[added] {
					t.Error("its limit is not known")
				}
			})
		})
	}
}

// A plugin starts while no GPU answers: what is allocated is offered all the same, and all are once the GPUs answer. A disk that is full
// keeps none from it.
func TestLoop_BeginUnanswered(t *testing.T) {
	for name, err := range map[string]error{"hangs": gpu.ErrHangs, "disk full": errors.New("no space left")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, f := newFakeLoop(t, "hgx-h100")
				f.limitErr = err
				f.records = []*records.Record{{Devices: []records.Device{{GPU: f.inventory.GPUs[2].PCI.DeviceName()}}}}
				l.Begin(t.Context())
				go func() { _ = l.Run(t.Context()) }()
				check := func(when string, want int) {
					t.Helper()
					synctest.Wait()
					if got := len(l.observed.Inventory.GPUs); got != want || read(f, &f.status).GPUs != want {
						t.Errorf("%s: %d GPUs are offered, want %d", when, got, want)
					}
				}
				check("at the start", map[bool]int{true: 1, false: 8}[errors.Is(err, gpu.ErrHangs)])
				f.set(func() { f.limitErr = nil })
				<-time.After(finishEvery + pollEvery)
				check("later", 8)
			})
		})
	}
}

// A plugin that restarts does not write the active policy again.
func TestLoop_PolicyKept(t *testing.T) {
	before, f := newFakeLoop(t, "a30")
	before.Begin(t.Context())
	if got := f.took(); got != "keep" {
		t.Fatalf("got %q, want the policy kept", got)
	}
	after, f := newFakeLoop(t, "a30")
	after.Active = before.observed.Memory.Active
	after.Begin(t.Context())
	if got := f.took(); got != "" {
		t.Errorf("after a restart: got %q, want nothing", got)
	}
}

// A plugin that is ended while it asks its GPUs ends after that: what follows closes the driver.
func TestLoop_BeginCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := newFakeLoop(t, "a30")
		f.hangs = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		go func() { l.Begin(ctx); close(begun) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-begun:
			t.Error("ended beside a call of the driver")
		default:
		}
		close(f.hangs)
		<-begun
	})
}
