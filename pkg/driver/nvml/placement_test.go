// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// misplacing is a GPU whose driver puts instances where it likes.
type misplacing struct {
	*fakeDevice
	destroyed int
	destroy   error
}

func (d *misplacing) MIG() MIG { return misplacingMIG{d.fakeDevice.MIG(), d} }

type misplacingMIG struct {
	MIG
	device *misplacing
}

func (m misplacingMIG) CreateGPUInstanceWithPlacement(profileID int, at gpu.Placement) (GPUInstance, error) {
	return &misplaced{device: m.device, info: GPUInstanceInfo{ID: 8, ProfileID: profileID,
		Placement: gpu.Placement{Start: at.Start + 1, Size: at.Size}}}, nil
}

type misplaced struct {
	GPUInstance
	device *misplacing
	info   GPUInstanceInfo
}

func (g *misplaced) Info() (GPUInstanceInfo, error) { return g.info, nil }

func (g *misplaced) Destroy() error {
	g.device.destroyed++
	return g.device.destroy
}

func TestCreatePartition_WrongPlacement(t *testing.T) {
	for _, stuck := range []error{nil, gpu.ErrInUse} {
		s := openFake(t, &fakeLibrary{devices: []*fakeDevice{h100(0)}})
		g := &s.Node().GPUs[0]
		d := &misplacing{fakeDevice: h100(0), destroy: stuck}
		s.inventory.last.handles[g.PCI] = handle{Device: d, dog: newWatchdog()}
		shape := gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[0], Placement: g.MIG.Profiles[0].Placements[0]}
		_, err := s.CreatePartition(t.Context(), shape)
		if err == nil || !strings.Contains(err.Error(), "placed it at 1:1") || d.destroyed != 1 {
			t.Errorf("got %v and %d destroyed, want an error that says 1:1 and 1", err, d.destroyed)
		}
		if errors.Is(err, gpu.ErrLeftBehind) != (stuck != nil) {
			t.Errorf("destroying it said %v: got %v", stuck, err)
		}
	}
}
