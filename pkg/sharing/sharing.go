// SPDX-License-Identifier: Apache-2.0

// Package sharing makes GPUs shared: time slices by the driver's nvidia-smi, MPS servers by the node's supervisor.
package sharing

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/driverroot"
	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/records"
)

// Supervisor is what is asked of the node's MPS supervisor.
type Supervisor interface {
	Ensure(ctx context.Context, r mps.Request) (mps.Endpoint, error)
	Release(ctx context.Context, gpuDevice string, claim types.UID) error
	Retain(ctx context.Context, gpuDevice, owner string, claims []types.UID) error
	Status(ctx context.Context) (*mps.Status, error)
}

// Run runs a program of the driver, by its path below the driver's root, and returns what it prints.
type Run func(ctx context.Context, root driverroot.Root, program string, args ...string) (output []byte, err error)

// RunProgram is the Run that runs programs.
func RunProgram(ctx context.Context, root driverroot.Root, program string, args ...string) ([]byte, error) {
	return root.Run(ctx, program, args...)
}

// Sharing shares the GPUs of a node.
type Sharing struct {
	owner      string
	supervisor Supervisor
	roots      []driverroot.Root
	found      *atomic.Pointer[driverroot.Root]
	run        Run
}

// New makes a Sharing of the plugin with a DRA driver name, as which it owns claims at the supervisor. roots are where the
// driver's files may be, one at least.
func New(owner string, supervisor Supervisor, roots []driverroot.Root, run Run) *Sharing {
	return &Sharing{owner: owner, supervisor: supervisor, roots: roots, found: &atomic.Pointer[driverroot.Root]{}, run: run}
}

// As is the same for claims of another driver name, which owns them at the supervisor.
func (s *Sharing) As(owner string) *Sharing {
	as := *s
	as.owner = owner
	return &as
}

// Found says which of the roots has the driver that runs: another may have programs of a driver that does not.
func (s *Sharing) Found(root driverroot.Root) { s.found.Store(&root) }

// smiTimeout bounds a run of nvidia-smi, which takes seconds on a loaded node; the kubelet waits 45 s for a claim.
const smiTimeout = 20 * time.Second

// SetTimeSlice sets the interval of a GPU's time slices. NVML has no function for it: nvidia-smi compute-policy is the
// driver's only public way. The driver keeps it until it is unloaded.
func (s *Sharing) SetTimeSlice(ctx context.Context, g *gpu.GPU, interval string) error {
	number := slices.Index(v1alpha1.Intervals(), v1alpha1.Interval(interval))
	if number < 0 {
		return fmt.Errorf("set the time slices of GPU %s: %q is no interval", g.PCI.DeviceName(), interval)
	}
	ctx, cancel := context.WithTimeout(ctx, smiTimeout)
	defer cancel()
	klog.FromContext(ctx).V(4).Info("Setting time slices", "gpu", g.PCI.DeviceName(), "interval", interval)
	root, smi := s.smi()
	output, err := s.run(ctx, root, smi, "compute-policy", "-i", g.UUID, "--set-timeslice", strconv.Itoa(number))
	if err != nil {
		return fmt.Errorf("set the time slices of GPU %s to %s with nvidia-smi: %w: %s", g.PCI.DeviceName(), interval, err, driverroot.OneLine(output))
	}
	return nil
}

// smi is the driver's root and the path of nvidia-smi below it, the usual one where there is none: the error names it.
func (s *Sharing) smi() (root driverroot.Root, path string) {
	roots := s.roots
	if found := s.found.Load(); found != nil {
		roots = []driverroot.Root{*found}
	}
	for _, root := range roots {
		if path, found := root.Find("nvidia-smi"); found {
			return root, path
		}
	}
	return roots[0], "/usr/bin/nvidia-smi"
}

// StartMPS makes a GPU's MPS server serve a claim. The server's defaults are what a claim can have at most, since a
// client can only go below them: its own part a container gets by its environment. A server that is the claim's alone
// has the claim's limits, and needs no policy that offers MPS.
func (s *Sharing) StartMPS(ctx context.Context, uid types.UID, g *gpu.GPU, offer *policy.Offer, limits *records.MPS) (pipeDir, shmDir string, err error) {
	settings, err := settings(g, offer, limits)
	if err != nil {
		return "", "", err
	}
	endpoint, err := s.supervisor.Ensure(ctx, mps.Request{
		Claim: uid, Device: g.PCI.DeviceName(), UUID: g.UUID, PCI: g.PCI, Settings: settings, Owner: s.owner,
	})
	if err != nil {
		return "", "", fmt.Errorf("start the MPS server of GPU %s: %w", g.PCI.DeviceName(), err)
	}
	return endpoint.PipeDir, endpoint.ShmDir, nil
}

// settings of the server of a GPU.
func settings(g *gpu.GPU, offer *policy.Offer, limits *records.MPS) (mps.Settings, error) {
	sharing := offer.Sharing(gpu.MPS)
	if limits == nil && sharing == nil {
		return mps.Settings{}, fmt.Errorf("GPU %s is not shared by MPS: %s", g.PCI.DeviceName(), why(offer))
	}
	if limits == nil {
		return mps.Settings{SharedMemory: sharing.SharedMemory, ActiveThreadPercentage: int(sharing.Cores.Total), PinnedMemory: sharing.Memory.Total}, nil
	}
	own := mps.Settings{SharedMemory: v1alpha1.DefaultSharedMemory, ActiveThreadPercentage: int(limits.ThreadPercentage), PinnedMemory: limits.Memory}
	if sharing != nil {
		own.SharedMemory = sharing.SharedMemory
	}
	return own, nil
}

func why(offer *policy.Offer) string {
	if offer.NoMPS != "" {
		return offer.NoMPS
	}
	return "the node's policy does not offer it"
}

// StopMPS takes a claim from a GPU's MPS server.
func (s *Sharing) StopMPS(ctx context.Context, uid types.UID, gpuDevice string) error {
	if err := s.supervisor.Release(ctx, gpuDevice, uid); err != nil {
		return fmt.Errorf("take claim %s from the MPS server of GPU %s: %w", uid, gpuDevice, err)
	}
	return nil
}

// ServedMPS lists what the MPS servers of the node serve, in order of GPU and claim.
func (s *Sharing) ServedMPS(ctx context.Context) ([]records.Served, error) {
	status, err := s.supervisor.Status(ctx)
	if err != nil {
		return nil, err
	}
	var served []records.Served
	for _, g := range status.GPUs {
		for _, uid := range g.Claims {
			served = append(served, records.Served{GPU: g.Device, Claim: uid, Owner: g.Owners[uid]})
		}
	}
	return served, nil
}

// RetainMPS takes all other claims of this plugin's name from a GPU's MPS server.
func (s *Sharing) RetainMPS(ctx context.Context, gpuDevice string, uids []types.UID) error {
	if err := s.supervisor.Retain(ctx, gpuDevice, s.owner, uids); err != nil {
		return fmt.Errorf("bring the MPS server of GPU %s in line: %w", gpuDevice, err)
	}
	return nil
}
