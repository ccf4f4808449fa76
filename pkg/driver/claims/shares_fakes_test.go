// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// gi is a gibibyte.
const gi = int64(1) << 30

// sharingDir is the driver's nvidia-smi and the node's MPS supervisor. What they know is in files, as it outlives the
// plugin: "interval GPU" holds the interval of a GPU, and "mps GPU claim" says that a GPU's server serves a claim, and
// holds the claim's owner.
type sharingDir struct {
	dir string
	// owner is the driver name of the plugin. onRetain is called by RetainMPS.
	owner    string
	onRetain func(gpuDevice string)
	// step is called for each change before and after it; err refuses it before it is made, or makes it seem to have
	// failed after it. Nil for neither.
	step func(what string)
	err  func(what string) error

	mu    sync.Mutex
	calls []string
}

func (s *sharingDir) change(call string, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	if err := hook(s.step, s.err, "before "+call); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return hook(s.step, s.err, "after "+call)
}

// hook reports a step to a test and asks it for an error.
func hook(step func(string), err func(string) error, what string) error {
	if step != nil {
		step(what)
	}
	if err != nil {
		return err(what)
	}
	return nil
}

func (s *sharingDir) SetTimeSlice(_ context.Context, g *gpu.GPU, interval string) error {
	return s.change(fmt.Sprintf("SetTimeSlice %s %s", g.PCI.DeviceName(), interval), func() error {
		return os.WriteFile(filepath.Join(s.dir, "interval "+g.PCI.DeviceName()), []byte(interval), 0o600)
	})
}

func (s *sharingDir) StartMPS(_ context.Context, uid types.UID, of gpu.Shape, uuid string, _ *policy.Offer, limits *records.MPS) (pipeDir, shmDir string, err error) {
	name := of.Name()
	if uuid == "" || of.IsShare() {
		panic("StartMPS of " + name + " with UUID " + uuid)
	}
	call := fmt.Sprintf("StartMPS %s %s", name, uid)
	if limits != nil {
		call += fmt.Sprintf(" %d%% %dGi", limits.ThreadPercentage, limits.Memory/gi)
	}
	err = s.change(call, func() error {
		return os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", name, uid)), []byte(s.owner), 0o600)
	})
	return "/run/mps/" + name + "/pipe", "/run/mps/" + name + "/shm", err
}

func (s *sharingDir) StopMPS(_ context.Context, uid types.UID, gpuDevice string) error {
	return s.change(fmt.Sprintf("StopMPS %s %s", gpuDevice, uid), func() error {
		return store.Disk{}.Remove(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid)))
	})
}

func (s *sharingDir) RetainMPS(_ context.Context, gpuDevice string, uids []types.UID) error {
	call := "RetainMPS " + gpuDevice
	if s.onRetain != nil {
		s.onRetain(gpuDevice)
	}
	others := slices.DeleteFunc(s.served(gpuDevice), func(uid types.UID) bool {
		return slices.Contains(uids, uid) || s.ownerOf(gpuDevice, uid) != s.owner
	})
	if len(others) == 0 { // no step: there is nothing to change
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls = append(s.calls, call)
		return hook(nil, s.err, "before "+call)
	}
	return s.change(call, func() error {
		for _, uid := range others {
			if err := os.Remove(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid))); err != nil {
				return err
			}
		}
		return nil
	})
}

// served lists the claims that a GPU's server serves.
func (s *sharingDir) served(gpuDevice string) []types.UID {
	var uids []types.UID
	for _, name := range s.files() {
		if uid, ok := strings.CutPrefix(name, "mps "+gpuDevice+" "); ok {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids
}

// ownerOf is who registered a claim.
func (s *sharingDir) ownerOf(gpuDevice string, uid types.UID) string {
	owner, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprintf("mps %s %s", gpuDevice, uid)))
	if err != nil {
		panic(err)
	}
	return string(owner)
}

func (s *sharingDir) ServedMPS(context.Context) ([]records.Served, error) {
	if err := hook(nil, s.err, "before ServedMPS"); err != nil {
		return nil, err
	}
	var served []records.Served
	for _, name := range s.files() {
		if words := strings.Fields(name); len(words) == 3 && words[0] == "mps" {
			served = append(served, records.Served{Server: words[1], Claim: types.UID(words[2]), Owner: s.ownerOf(words[1], types.UID(words[2]))})
		}
	}
	return served, nil
}

// interval is that of a GPU; empty if it is the driver's own.
func (s *sharingDir) interval(gpuDevice string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, "interval "+gpuDevice))
	if err != nil || string(data) == "Default" {
		return ""
	}
	return string(data)
}

func (s *sharingDir) files() []string {
	names, err := store.Disk{}.ReadDir(s.dir)
	if err != nil {
		panic(err)
	}
	return names
}

// took returns the calls since the last time.
func (s *sharingDir) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}
