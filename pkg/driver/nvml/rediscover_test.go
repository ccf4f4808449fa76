// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// look looks so many times, 10 s apart, and reports whether anything has changed.
func (s *bed) look(times int) (changed bool) {
	s.t.Helper()
	for range times {
		now, err := s.rediscover()
		must(s.t, err)
		changed = changed || now
		<-time.After(10 * time.Second)
	}
	return changed
}

// uuids are those of the inventory.
func (s *bed) uuids() (all []string) {
	for _, g := range s.Node().GPUs {
		all = append(all, g.UUID)
	}
	return all
}

// search runs steps in a bubble of time.
func search(t *testing.T, model string, before func(*sim.Node) error, steps func(t *testing.T, s *bed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { steps(t, newBedAfter(t, model, before)) })
}

func TestRediscover_AddedGPU(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().SetAbsent(0, true) }, func(t *testing.T, s *bed) {
		if got := len(s.Node().GPUs); got != 1 {
			t.Fatalf("got %d GPUs at the start, want 1", got)
		}
		events, err := s.Events(t.Context())
		must(t, err)
		if s.look(3) {
			t.Error("the inventory changed though nothing was added")
		}
		must(t, s.node.Hardware().SetAbsent(0, false))
		if !s.look(1) || len(s.Node().GPUs) != 2 {
			t.Fatalf("got %v, want both GPUs", s.uuids())
		}
		for i := range s.Node().GPUs {
			must(t, s.VerifyGPU(t.Context(), s.gpu(i)))
		}
		if _, _, err := events.Next(time.Second); err == nil {
			t.Error("a watch from before goes on without the GPU that was added")
		}
		must(t, events.Close())
		if s.look(3) {
			t.Error("the inventory changed again")
		}
	})
}

func TestRediscover_RemovedGPU(t *testing.T) {
	for name, allocated := range map[string]bool{"free": false, "allocated": true} {
		t.Run(name, func(t *testing.T) {
			search(t, "a30", asItIs, func(t *testing.T, s *bed) {
				gone := s.Node().GPUs[0]
				s.allocated[gone.PCI] = allocated
				must(t, s.node.Hardware().SetAbsent(0, true))
				if s.look(1) {
					t.Error("the GPU left at the first look: a claim may have been allocated it and not be prepared yet")
				}
				mustFail(t, s.VerifyGPU(t.Context(), &gone), gpu.ErrAbsent)
				s.look(2)
				if got, want := len(s.Node().GPUs), map[bool]int{false: 1, true: 2}[allocated]; got != want {
					t.Errorf("got %d GPUs, want %d", got, want)
				}
				if !allocated {
					return
				}
				s.allocated = nil
				if !s.look(2) || len(s.Node().GPUs) != 1 {
					t.Errorf("got %v once no claim has it, want the other GPU alone", s.uuids())
				}
			})
		})
	}
}

func TestRediscover_ReplacedGPU(t *testing.T) {
	search(t, "a30", asItIs, func(t *testing.T, s *bed) {
		was := s.Node().GPUs[0]
		s.allocated[was.PCI] = true
		must(t, s.node.Hardware().Replace(0, "GPU-new"))
		err := s.VerifyGPU(t.Context(), &was)
		if !errors.Is(err, gpu.ErrReplaced) || !strings.Contains(err.Error(), was.PCI.String()+" is now GPU-new, not "+was.UUID) {
			t.Fatalf("got %v, want %v that names both", err, gpu.ErrReplaced)
		}
		s.look(1)
		equal(t, "while a claim has the old one", was.UUID, s.Node().GPUs[0].UUID)
		mustFail(t, s.DestroyPartition(t.Context(), was.PCI, gpu.Partition{}), gpu.ErrReplaced)
		s.allocated = nil
		_ = s.VerifyGPU(t.Context(), &was)
		s.look(1)
		equal(t, "once no claim has it", "GPU-new", s.Node().GPUs[0].UUID)
	})
}

func TestRediscover_UnreadableAtStart(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().Lose(0) }, func(t *testing.T, s *bed) {
		if len(s.Node().GPUs) != 1 || len(s.Node().Problems) != 1 {
			t.Fatalf("got %v and problems %v, want one of each", s.uuids(), s.Node().Problems)
		}
		s.look(2)
		if missing := s.Missing(); len(missing) != 1 || missing[0] == s.Node().GPUs[0].PCI {
			t.Errorf("missing: %v, want the GPU that cannot be read", missing)
		}
		must(t, s.node.Faults().Clear(-1))
		if !s.look(4) || len(s.Node().GPUs) != 2 || len(s.Node().Problems)+len(s.Missing()) != 0 {
			t.Errorf("got %v, problems %v and missing %v, want both GPUs", s.uuids(), s.Node().Problems, s.Missing())
		}
	})
}

func TestRediscover_HangingCall(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().SetAbsent(0, true) }, func(t *testing.T, s *bed) {
		must(t, s.node.Faults().HangCall(1, "nvmlDeviceGetTemperature"))
		if err := s.VerifyGPU(t.Context(), s.gpu(0)); !errors.Is(err, gpu.ErrHangs) {
			t.Fatalf("got %v, want %v", err, gpu.ErrHangs)
		}
		must(t, s.node.Hardware().SetAbsent(0, false))
		inits := s.node.Calls().Of("nvmlShutdown")
		if _, err := s.rediscover(); !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("got %v, want %v", err, gpu.ErrHangs)
		}
		if s.node.Calls().Of("nvmlShutdown") != inits {
			t.Error("the session was ended under a call that has not returned")
		}
		must(t, s.node.Faults().Clear(-1))
		<-time.After(20 * time.Second)
		if !s.look(1) || len(s.Node().GPUs) != 2 {
			t.Errorf("got %v after the call returned, want both GPUs", s.uuids())
		}
	})
}

func TestRediscover_MinorChanged(t *testing.T) {
	search(t, "hgx-h100", quirk(sim.QuirkMinorChanges), func(t *testing.T, s *bed) {
		g := s.Node().GPUs[0]
		must(t, s.SetMIG(t.Context(), g.PCI, true))
		if err := s.VerifyGPU(t.Context(), &g); !errors.Is(err, gpu.ErrMinorChanged) {
			t.Fatalf("got %v, want %v", err, gpu.ErrMinorChanged)
		}
		if !s.look(1) || s.Node().GPUs[0].Minor == g.Minor {
			t.Errorf("got minor %d, as before", s.Node().GPUs[0].Minor)
		}
		must(t, s.VerifyGPU(t.Context(), s.gpu(0)))
	})
}

func TestVerifyGPU_CachedUUID(t *testing.T) {
	search(t, "a30", quirk(sim.QuirkUUIDFromMemory), func(t *testing.T, s *bed) {
		must(t, s.node.Hardware().Lose(0))
		mustFail(t, s.VerifyGPU(t.Context(), s.gpu(0)), gpu.ErrLost)
	})
}

func TestDiscover_WrongCounts(t *testing.T) {
	graphics := []string{"profile-47", "profile-35"} // are as the driver counts them: nothing else does
	counters := func(s *bed) []gpu.Counter {
		return slices.DeleteFunc(s.Node().GPUs[0].Counters(), func(c gpu.Counter) bool { return slices.Contains(graphics, c.Name) })
	}
	for _, model := range []string{"a30", "hgx-h100", "rtx-pro-6000"} {
		search(t, model, asItIs, func(t *testing.T, right *bed) {
			wrong := newBedAfter(t, model, quirk(sim.QuirkWrongCounts))
			if diff := cmp.Diff(counters(right), counters(wrong)); diff != "" {
				t.Errorf("counters of %s where the driver counts too few (-right +wrong):\n%s", model, diff)
			}
		})
	}
}

func TestDiscover_Virtualization(t *testing.T) {
	mode := func(mode int) func(n *sim.Node) error {
		return func(n *sim.Node) error { return n.Hardware().SetVirtualization(0, mode) }
	}
	search(t, "hgx-h100", mode(sim.VirtualizationVGPU), func(t *testing.T, s *bed) {
		g := s.gpu(0)
		if !g.MIG.Fixed || len(g.Shapes()) != 1 || g.Shapes()[0].IsPartition() {
			t.Errorf("vGPU: fixed %t, %d shapes; want the whole GPU alone, as it is found", g.MIG.Fixed, len(g.Shapes()))
		}
	})
	search(t, "hgx-h100", mode(sim.VirtualizationHostVGPU), func(t *testing.T, s *bed) {
		if len(s.Node().GPUs) != 7 || len(s.Node().Problems) != 1 {
			t.Errorf("host of vGPUs: got %d GPUs and problems %v, want it left out with a reason", len(s.Node().GPUs), s.Node().Problems)
		}
		if s.look(1); len(s.Missing()) != 0 {
			t.Errorf("host of vGPUs: %v are missing, want none", s.Missing())
		}
	})
}

func TestDiscover_ConfidentialComputing(t *testing.T) {
	mode := func(mode int) func(n *sim.Node) error {
		return func(n *sim.Node) error { return n.Hardware().SetConfidential(mode) }
	}
	for name, test := range map[string]struct {
		model       string
		mode        int
		on, refuses bool
	}{
		"off":                    {"hgx-h100", sim.ConfidentialOff, false, false},
		"not ready":              {"hgx-h100", sim.ConfidentialNotReady, true, true},
		"ready":                  {"hgx-h100", sim.ConfidentialReady, true, false},
		"protected PCIe":         {"hgx-h100", sim.ProtectedPCIeNotReady, true, true},
		"protected PCIe, ready":  {"hgx-h100", sim.ProtectedPCIeReady, true, false},
		"older than the feature": {"t4", sim.ConfidentialNotReady, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			search(t, test.model, mode(test.mode), func(t *testing.T, s *bed) {
				refuses, err := s.RefusesWork(t.Context())
				if err != nil || s.Node().ConfidentialComputing != test.on || refuses != test.refuses {
					t.Errorf("on %t, refuses work %t, %v; want %t, %t", s.Node().ConfidentialComputing, refuses, err, test.on, test.refuses)
				}
			})
		})
	}
}

func TestRereadLinks(t *testing.T) {
	late := func(n *sim.Node) error {
		return errors.Join(n.Hardware().SetLinks(0, false), n.Hardware().SetFabricState(1, sim.FabricInProgress, 0))
	}
	search(t, "gb200-nvl72", late, func(t *testing.T, s *bed) {
		if n := s.Node().GPUs[0].NVLinks.Active; n != 0 {
			t.Fatalf("%d links are up at the start, want none", n)
		}
		if g := s.Node().GPUs[1]; g.Fabric != nil || !g.FabricState.Pending() {
			t.Fatalf("got fabric %v, %s, want a registration in progress", g.Fabric, g.FabricState)
		}
		if s.RereadLinks(t.Context()) {
			t.Error("changed though nothing has")
		}
		must(t, errors.Join(s.node.Hardware().SetLinks(0, true), s.node.Hardware().SetFabricState(1, 0, 0)))
		if !s.RereadLinks(t.Context()) || s.Node().GPUs[0].NVLinks.Active == 0 || s.Node().GPUs[1].Fabric == nil {
			t.Errorf("got %d links and fabric %v, want them as they are now", s.Node().GPUs[0].NVLinks.Active, s.Node().GPUs[1].Fabric)
		}
	})
}

func TestAwaitFabric(t *testing.T) {
	search(t, "gb200-nvl72", asItIs, func(t *testing.T, s *bed) {
		g := s.gpu(0)
		must(t, s.node.Hardware().SetFabricState(0, sim.FabricInProgress, 5))
		start := time.Now()
		must(t, s.AwaitFabric(t.Context(), g))
		if took := time.Since(start); took < time.Second {
			t.Errorf("it took %s, want it to wait for the registration", took)
		}
		for _, state := range []int{sim.FabricInProgress, sim.FabricNotStarted} { // CUDA fails in either
			must(t, s.node.Hardware().SetFabricState(0, state, 0))
			start = time.Now()
			if err := s.AwaitFabric(t.Context(), g); !errors.Is(err, gpu.ErrFabricPending) || time.Since(start) > 25*time.Second {
				t.Errorf("state %d: got %v after %s, want %v within 25 s", state, err, time.Since(start), gpu.ErrFabricPending)
			}
		}
	})
	search(t, "gb200-nvl72", func(n *sim.Node) error { return n.Hardware().SetFabricState(0, sim.FabricFailed, 0) }, func(t *testing.T, s *bed) {
		must(t, s.node.Hardware().SetFabricState(1, sim.FabricRouteUnhealthy, 0))
		s.RereadLinks(t.Context())
		for i := range 2 {
			g := s.gpu(i)
			if state, err := s.Fabric(t.Context(), g); err != nil || state != gpu.FabricFailed || g.NVLinks.Active > 0 || g.Fabric != nil {
				t.Errorf("GPU %d: got %s, %v, %d links and fabric %v; want a failed registration and none", i, state, err, g.NVLinks.Active, g.Fabric)
			}
			must(t, s.AwaitFabric(t.Context(), g)) // programs run without NVLink
		}
	})
}
