// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// searched is a node whose GPUs come and go.
type searched struct {
	*nvml.Session
	t         *testing.T
	node      *sim.Node
	allocated map[gpu.PCIAddress]bool
}

func newSearched(t *testing.T, model string, before func(*sim.Node) error) *searched {
	t.Helper()
	node, err := sim.New(model)
	if err != nil {
		t.Fatal(err)
	}
	if err := before(node); err != nil {
		t.Fatal(err)
	}
	session, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	return &searched{session, t, node, map[gpu.PCIAddress]bool{}}
}

// look looks so many times, 10 s apart, and reports whether anything has changed.
func (s *searched) look(times int) (changed bool) {
	s.t.Helper()
	for range times {
		now, err := s.Rediscover(s.t.Context(), func(pci gpu.PCIAddress) bool { return s.allocated[pci] })
		if err != nil {
			s.t.Fatal(err)
		}
		changed = changed || now
		<-time.After(10 * time.Second)
	}
	return changed
}

func (s *searched) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// uuids are those of the inventory.
func (s *searched) uuids() (all []string) {
	for _, g := range s.Node().GPUs {
		all = append(all, g.UUID)
	}
	return all
}

// search runs steps in a bubble of time.
func search(t *testing.T, model string, before func(*sim.Node) error, steps func(t *testing.T, s *searched)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { steps(t, newSearched(t, model, before)) })
}

func asItIs(*sim.Node) error { return nil }

func TestRediscover_AddedGPU(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().SetAbsent(0, true) }, func(t *testing.T, s *searched) {
		if got := len(s.Node().GPUs); got != 1 {
			t.Fatalf("got %d GPUs at the start, want 1", got)
		}
		events, err := s.Events(t.Context())
		s.must(err)
		if s.look(3) {
			t.Error("the inventory changed though nothing was added")
		}
		s.must(s.node.Hardware().SetAbsent(0, false))
		if !s.look(1) || len(s.Node().GPUs) != 2 {
			t.Fatalf("got %v, want both GPUs", s.uuids())
		}
		for i := range s.Node().GPUs {
			s.must(s.VerifyGPU(t.Context(), &s.Node().GPUs[i]))
		}
		if _, _, err := events.Next(time.Second); err == nil {
			t.Error("a watch from before goes on without the GPU that was added")
		}
		s.must(events.Close())
		if s.look(3) {
			t.Error("the inventory changed again")
		}
	})
}

func TestRediscover_RemovedGPU(t *testing.T) {
	for name, allocated := range map[string]bool{"free": false, "allocated": true} {
		t.Run(name, func(t *testing.T) {
			search(t, "a30", asItIs, func(t *testing.T, s *searched) {
				gone := s.Node().GPUs[0]
				s.allocated[gone.PCI] = allocated
				s.must(s.node.Hardware().SetAbsent(0, true))
				if s.look(1) {
					t.Error("the GPU left at the first look: a claim may have been allocated it and not be prepared yet")
				}
				if err := s.VerifyGPU(t.Context(), &gone); !errors.Is(err, gpu.ErrAbsent) {
					t.Errorf("got %v, want %v", err, gpu.ErrAbsent)
				}
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
	search(t, "a30", asItIs, func(t *testing.T, s *searched) {
		was := s.Node().GPUs[0]
		s.allocated[was.PCI] = true
		s.must(s.node.Hardware().Replace(0, "GPU-new"))
		if err := s.VerifyGPU(t.Context(), &was); !errors.Is(err, gpu.ErrReplaced) {
			t.Fatalf("got %v, want %v", err, gpu.ErrReplaced)
		}
		s.look(1)
		if diff := cmp.Diff(was.UUID, s.Node().GPUs[0].UUID); diff != "" {
			t.Errorf("while a claim has the old one (-want +got):\n%s", diff)
		}
		if err := s.DestroyPartition(t.Context(), was.PCI, gpu.Partition{}); !errors.Is(err, gpu.ErrReplaced) {
			t.Errorf("a call for the old one reached the new one: got %v, want %v", err, gpu.ErrReplaced)
		}
		s.allocated = nil
		_ = s.VerifyGPU(t.Context(), &was)
		s.look(1)
		if diff := cmp.Diff("GPU-new", s.Node().GPUs[0].UUID); diff != "" {
			t.Errorf("once no claim has it (-want +got):\n%s", diff)
		}
	})
}

func TestRediscover_UnreadableAtStart(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().Lose(0) }, func(t *testing.T, s *searched) {
		if len(s.Node().GPUs) != 1 || len(s.Node().Problems) != 1 {
			t.Fatalf("got %v and problems %v, want one of each", s.uuids(), s.Node().Problems)
		}
		s.look(2)
		s.must(s.node.Faults().Clear(-1))
		if !s.look(4) || len(s.Node().GPUs) != 2 || len(s.Node().Problems) != 0 {
			t.Errorf("got %v and problems %v, want both GPUs", s.uuids(), s.Node().Problems)
		}
	})
}

func TestRediscover_HangingCall(t *testing.T) {
	search(t, "a30", func(n *sim.Node) error { return n.Hardware().SetAbsent(0, true) }, func(t *testing.T, s *searched) {
		s.must(s.node.Faults().HangCall(1, "nvmlDeviceGetTemperature"))
		if err := s.VerifyGPU(t.Context(), &s.Node().GPUs[0]); !errors.Is(err, gpu.ErrHangs) {
			t.Fatalf("got %v, want %v", err, gpu.ErrHangs)
		}
		s.must(s.node.Hardware().SetAbsent(0, false))
		inits := s.node.Calls().Of("nvmlShutdown")
		if _, err := s.Rediscover(t.Context(), func(gpu.PCIAddress) bool { return false }); !errors.Is(err, gpu.ErrHangs) {
			t.Errorf("got %v, want %v", err, gpu.ErrHangs)
		}
		if s.node.Calls().Of("nvmlShutdown") != inits {
			t.Error("the session was ended under a call that has not returned")
		}
		s.must(s.node.Faults().Clear(-1))
		<-time.After(20 * time.Second)
		if !s.look(1) || len(s.Node().GPUs) != 2 {
			t.Errorf("got %v after the call returned, want both GPUs", s.uuids())
		}
	})
}

func TestRediscover_MinorChanged(t *testing.T) {
	quirk := func(n *sim.Node) error { return n.Driver().SetQuirk(sim.QuirkMinorChanges, true) }
	search(t, "hgx-h100", quirk, func(t *testing.T, s *searched) {
		g := s.Node().GPUs[0]
		s.must(s.SetMIG(t.Context(), g.PCI, true))
		if err := s.VerifyGPU(t.Context(), &g); !errors.Is(err, gpu.ErrMinorChanged) {
			t.Fatalf("got %v, want %v", err, gpu.ErrMinorChanged)
		}
		if !s.look(1) || s.Node().GPUs[0].Minor == g.Minor {
			t.Errorf("got minor %d, as before", s.Node().GPUs[0].Minor)
		}
		s.must(s.VerifyGPU(t.Context(), &s.Node().GPUs[0]))
	})
}

func TestVerifyGPU_CachedUUID(t *testing.T) {
	quirk := func(n *sim.Node) error { return n.Driver().SetQuirk(sim.QuirkUUIDFromMemory, true) }
	search(t, "a30", quirk, func(t *testing.T, s *searched) {
		s.must(s.node.Hardware().Lose(0))
		if err := s.VerifyGPU(t.Context(), &s.Node().GPUs[0]); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("got %v, want %v", err, gpu.ErrLost)
		}
	})
}

func TestDiscover_WrongCounts(t *testing.T) {
	graphics := []string{"profile-47", "profile-35"} // are as the driver counts them: nothing else does
	counters := func(s *searched) []gpu.Counter {
		return slices.DeleteFunc(s.Node().GPUs[0].Counters(), func(c gpu.Counter) bool { return slices.Contains(graphics, c.Name) })
	}
	for _, model := range []string{"a30", "hgx-h100", "rtx-pro-6000"} {
		quirk := func(n *sim.Node) error { return n.Driver().SetQuirk(sim.QuirkWrongCounts, true) }
		search(t, model, asItIs, func(t *testing.T, right *searched) {
			wrong := newSearched(t, model, quirk)
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
	search(t, "hgx-h100", mode(sim.VirtualizationVGPU), func(t *testing.T, s *searched) {
		g := &s.Node().GPUs[0]
		if !g.MIG.Fixed || len(g.Shapes()) != 1 || g.Shapes()[0].IsPartition() {
			t.Errorf("vGPU: fixed %t, %d shapes; want the whole GPU alone, as it is found", g.MIG.Fixed, len(g.Shapes()))
		}
	})
	search(t, "hgx-h100", mode(sim.VirtualizationHostVGPU), func(t *testing.T, s *searched) {
		if len(s.Node().GPUs) != 7 || len(s.Node().Problems) != 1 {
			t.Errorf("host of vGPUs: got %d GPUs and problems %v, want it left out with a reason", len(s.Node().GPUs), s.Node().Problems)
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
		"older than the feature": {"t4", sim.ConfidentialNotReady, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			search(t, test.model, mode(test.mode), func(t *testing.T, s *searched) {
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
	search(t, "gb200-nvl72", late, func(t *testing.T, s *searched) {
		if n := s.Node().GPUs[0].NVLinks.Active; n != 0 {
			t.Fatalf("%d links are up at the start, want none", n)
		}
		if g := s.Node().GPUs[1]; g.Fabric != nil || !g.FabricState.Pending() {
			t.Fatalf("got fabric %v, %s, want a registration in progress", g.Fabric, g.FabricState)
		}
		if s.RereadLinks(t.Context()) {
			t.Error("changed though nothing has")
		}
		s.must(errors.Join(s.node.Hardware().SetLinks(0, true), s.node.Hardware().SetFabricState(1, 0, 0)))
		if !s.RereadLinks(t.Context()) || s.Node().GPUs[0].NVLinks.Active == 0 || s.Node().GPUs[1].Fabric == nil {
			t.Errorf("got %d links and fabric %v, want them as they are now", s.Node().GPUs[0].NVLinks.Active, s.Node().GPUs[1].Fabric)
		}
	})
}

func TestAwaitFabric(t *testing.T) {
	search(t, "gb200-nvl72", asItIs, func(t *testing.T, s *searched) {
		g := &s.Node().GPUs[0]
		s.must(s.node.Hardware().SetFabricState(0, sim.FabricInProgress, 5))
		start := time.Now()
		s.must(s.AwaitFabric(t.Context(), g))
		if took := time.Since(start); took < time.Second {
			t.Errorf("it took %s, want it to wait for the registration", took)
		}
		for _, state := range []int{sim.FabricInProgress, sim.FabricNotStarted} { // CUDA fails in either
			s.must(s.node.Hardware().SetFabricState(0, state, 0))
			start = time.Now()
			if err := s.AwaitFabric(t.Context(), g); !errors.Is(err, gpu.ErrFabricPending) || time.Since(start) > 25*time.Second {
				t.Errorf("state %d: got %v after %s, want %v within 25 s", state, err, time.Since(start), gpu.ErrFabricPending)
			}
		}
	})
	search(t, "gb200-nvl72", func(n *sim.Node) error { return n.Hardware().SetFabricState(0, sim.FabricFailed, 0) }, func(t *testing.T, s *searched) {
		s.must(s.node.Hardware().SetFabricState(1, sim.FabricRouteUnhealthy, 0))
		s.RereadLinks(t.Context())
		for i := range 2 {
			g := &s.Node().GPUs[i]
			if state, err := s.Fabric(t.Context(), g); err != nil || state != gpu.FabricFailed || g.NVLinks.Active > 0 || g.Fabric != nil {
				t.Errorf("GPU %d: got %s, %v, %d links and fabric %v; want a failed registration and none", i, state, err, g.NVLinks.Active, g.Fabric)
			}
			s.must(s.AwaitFabric(t.Context(), g)) // programs run without NVLink
		}
	})
}
