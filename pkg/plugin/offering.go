// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cdi/hook"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/publish"
	"github.com/cleave-dra/cleave/pkg/records"
)

// hardware is a session whose GPUs offer what the node's policy says.
type hardware struct {
	*nvml.Session
	limits func(g *gpu.GPU) bool
	held   func() []*records.Record
	// standing are a GPU's partitions that were made for no claim.
	standing func(g *gpu.GPU) []gpu.Place
	// noShares is why the cluster cannot count shares; nil if it can.
	noShares error
	node     atomic.Pointer[policy.Node]
	// look takes a value when GPUs are to be looked for at once.
	look  chan<- struct{}
	ended sync.Once

	// policy and before are only touched by the goroutine that keeps things in line.
	policy *v1alpha1.NodePolicy
	// before is what the GPUs offered by the policy before this one; nil once that has left.
	before *policy.Node
}

// leaveFor is how long devices that a new policy has no more stay published, tainted, though no claim holds them. A claim
// may have been allocated one and not have been prepared: were the device gone at once, that claim could not be prepared,
// and the scheduler would give to others what it consumes.
const leaveFor = 5 * time.Second

// end ends the NVML session; it can be called again.
func (h *hardware) end(ctx context.Context) {
	h.ended.Do(func() {
		if err := h.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Could not end the NVML session")
		}
	})
}

// Node is the inventory as published, with what its GPUs offer.
func (h *hardware) Node() *policy.Node { return h.node.Load() }

// change puts another policy in force with the next offer.
func (h *hardware) change(p *v1alpha1.NodePolicy) {
	h.policy = p
	if was := h.Node(); was != nil && slices.ContainsFunc(was.GPUs, func(g gpu.GPU) bool { return len(was.Shapes(&g)) > 0 }) {
		h.before = was
	}
}

// offer applies the policy, with MPS or with the reason why there is none.
func (h *hardware) offer(noMPS error) {
	node := policy.Apply(h.policy, h.Session.Node(), policy.Means{MPS: noMPS, Shares: h.noShares, CgroupMemory: h.limits, Held: records.HeldOf(h.held()), Partitions: h.standing})
	if h.before != nil {
		leave(node, h.before)
	}
	h.node.Store(node)
}

// leave adds to what a node offers what it offered before and does no more, withdrawn.
func leave(node, before *policy.Node) {
	for i := range node.GPUs {
		g := before.Find(node.GPUs[i].PCI.DeviceName())
		if g == nil {
			continue
		}
		was, now := before.Offer(g), &node.Offers[i]
		for _, s := range was.Shapes(g) {
			switch {
			case s.Share == gpu.TimeSlice && now.TimeSlice == nil:
				now.TimeSlice, now.Withdrawn.TimeSlice = was.Sharing(gpu.TimeSlice), true
			case s.Share == gpu.MPS && now.MPS == nil:
				now.MPS, now.Withdrawn.MPS = was.Sharing(gpu.MPS), true
			case s.IsWhole() && !now.Whole:
				now.Whole, now.Withdrawn.Whole = true, true
			case s.IsPartition():
				if now.Partitions == nil {
					now.Partitions = policy.NoPlaces(nil)
				}
				if at := s.Place(); !now.Partitions.Has(at) && !slices.Contains(now.Partitions.Kept, at) {
					now.Partitions.Kept = append(now.Partitions.Kept, at)
				}
			}
		}
	}
}

// withdrawn tells whether something is offered only because claims hold it.
func withdrawn(node *policy.Node) bool {
	return slices.ContainsFunc(node.GPUs, func(g gpu.GPU) bool {
		offer := node.Offer(&g)
		return slices.ContainsFunc(offer.Shapes(&g), offer.IsWithdrawn)
	})
}

// uncut tells whether a GPU lacks partitions of its layout.
func uncut(node *policy.Node, standing func(g *gpu.GPU) []gpu.Place) bool {
	for i := range node.GPUs {
		g := &node.GPUs[i]
		offer := node.Offer(g)
		if offer.PartitionMode() != policy.Layout {
			continue
		}
		there := standing(g)
		if slices.ContainsFunc(offer.Partitions.Places, func(at gpu.Place) bool { return !slices.Contains(there, at) }) {
			return true
		}
	}
	return false
}

// memoryLimits finds out on which GPUs the driver can hold a container to an amount of memory, and installs what asks it
// to where there is any.
func (s *service) memoryLimits(ctx context.Context, session *nvml.Session) (func(g *gpu.GPU) bool, error) {
	limited := map[gpu.PCIAddress]bool{}
	if !unified(s.config.CgroupRoot) {
		klog.FromContext(ctx).Info("Memory of time slices is not limited: no cgroup v2 hierarchy", "root", s.config.CgroupRoot)
		return func(*gpu.GPU) bool { return false }, nil
	}
	for i := range session.Node().GPUs {
		if pci := session.Node().GPUs[i].PCI; session.LimitsMemory(ctx, pci, s.config.CgroupRoot) {
			limited[pci] = true
		}
	}
	if len(limited) > 0 {
		if err := s.persist(ctx, func() error {
			_, err := hook.Install(s.config.pluginDir(), hook.MemoryLimit)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return func(g *gpu.GPU) bool { return limited[g.PCI] }, nil
}

// unified tells whether a folder is the root of a cgroup v2 hierarchy. Only those have the file.
func unified(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.controllers"))
	return err == nil
}

// errMPSOff is why no GPU is shared by MPS where no socket is given.
var errMPSOff = errors.New("the plugin runs with an empty --mps-socket")

// supervisor watches the node's MPS supervisor.
type supervisor struct {
	client *mps.Client // nil without a socket
	// offered tells that devices of type mps are published. They stay, tainted, when the supervisor goes away: the
	// scheduler forgets what a device consumes that is gone.
	offered bool
	// away is why no server can be started now; nil while one can.
	away error
}

// Times of asking the supervisor whether it is there, and the most that an answer may take.
const (
	supervisorEvery   = 2 * time.Second
	supervisorTimeout = time.Second
)

// ask looks whether the supervisor answers, and tells whether that has changed.
func (s *supervisor) ask(ctx context.Context) (changed bool) {
	err := errMPSOff
	if s.client != nil {
		ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
		defer cancel()
		err = s.client.Available(ctx)
	}
	changed = (err == nil) != (s.away == nil)
	s.away = err
	s.offered = s.offered || err == nil
	return changed
}

// noMPS is why devices of type mps are not published; nil if they are.
func (s *supervisor) noMPS() error {
	if s.offered {
		return nil
	}
	return s.away
}

// taints are those of devices that need the supervisor while it is away.
func (s *supervisor) taints(node *policy.Node) []publish.Taint {
	var taints []publish.Taint
	for i := range node.GPUs {
		if s.away != nil && node.Offer(&node.GPUs[i]).Sharing(gpu.MPS) != nil {
			taints = append(taints, publish.Taint{Device: gpu.Shape{GPU: &node.GPUs[i], Share: gpu.MPS}.Name(), Key: publish.TaintNoMPS})
		}
	}
	return taints
}

// watchMPS reports what happens to MPS servers that claims use, until ctx ends.
func (s *service) watchMPS(ctx context.Context) {
	s.supervisor.client.Watch(ctx, func(e mps.Event) {
		s.metrics.mpsEvents.WithLabelValues(string(e.Kind)).Inc()
		var names []string
		for _, uid := range e.Claims {
			claim := s.engine.Claim(uid)
			names = append(names, claim.String())
			if claim.Name != "" {
				s.events.warnClaim(claim, "MPS"+string(e.Kind), fmt.Sprintf("GPU %s: %s", e.Device, e.Message))
			}
		}
		klog.FromContext(ctx).Error(errors.New(e.Message), "An MPS server that claims use", "event", e.Kind, "gpu", e.Device, "claims", names)
		s.events.warn("MPS"+string(e.Kind), fmt.Sprintf("GPU %s, claims %s: %s", e.Device, strings.Join(names, ", "), e.Message))
		signal(s.changed)
	})
}

// reportSupervisor says that the supervisor went away, and whom that concerns, or that it is back.
func (s *service) reportSupervisor(ctx context.Context) {
	if s.supervisor.away == nil {
		klog.FromContext(ctx).Info("The MPS supervisor answers")
		return
	}
	var names []string
	for _, r := range s.engine.Records() {
		if len(r.Shares(gpu.MPS)) > 0 && r.State == records.Prepared {
			names = append(names, r.Claim.String())
		}
	}
	klog.FromContext(ctx).Error(s.supervisor.away, "The MPS supervisor went away", "claims", names)
	if len(names) > 0 {
		s.events.warn("MPSSupervisorAway", fmt.Sprintf("%v. Claims that run by MPS go on as long as their servers do, but nobody restarts those: %s",
			s.supervisor.away, strings.Join(names, ", ")))
	}
}

// noSupervisor answers where GPUs are not shared by MPS. What an earlier run shared it cannot give back: the claims stay
// on record until a supervisor can be asked.
type noSupervisor struct{}

func (noSupervisor) Ensure(context.Context, mps.Request) (mps.Endpoint, error) {
	return mps.Endpoint{}, errMPSOff
}

func (noSupervisor) Release(context.Context, string, types.UID) error { return errMPSOff }

func (noSupervisor) Retain(_ context.Context, _, _ string, claims []types.UID) error {
	if len(claims) > 0 {
		return errMPSOff
	}
	return nil
}

func (noSupervisor) Status(context.Context) (*mps.Status, error) { return &mps.Status{}, nil }
