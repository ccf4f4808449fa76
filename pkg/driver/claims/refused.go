// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// refusedFor is how long a profile is assumed to be refused without another attempt.
const refusedFor = 10 * time.Minute

// refused remembers profiles that drivers refused to create although their place was free, by the device name of the GPU. The reasons
// show neither in possible placements nor in remaining capacity: "QA observed only 3 creatable 1g instances on a 61x Station
// even though Free/Total reported 7" (NVIDIA dgx-spark-playbooks, mig-configure). They are lost on a restart.
type refused struct {
	mu    sync.Mutex
	byGPU map[string]map[int]refusedProfile // by the profile's ID
}

// refusedProfile is one refusal. It holds while the partitions of that time exist: without one of them, the driver may accept.
type refusedProfile struct {
	// places are those of a claim that requests several partitions, which may fit one by one. If nil, all places of the profile
	// count as refused, as trying each would cost a pod that does not start.
	places []gpu.Place
	beside []gpu.Place
	at     time.Time
}

func (r *refused) note(gpuDevice string, profileID int, answer refusedProfile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byGPU == nil {
		r.byGPU = map[string]map[int]refusedProfile{}
	}
	if r.byGPU[gpuDevice] == nil {
		r.byGPU[gpuDevice] = map[int]refusedProfile{}
	}
	r.byGPU[gpuDevice][profileID] = answer
}

// forget drops the refusal of a profile after a partition of it has been created.
func (r *refused) forget(gpuDevice string, profileID int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byGPU[gpuDevice], profileID)
}

// of returns a function that reports which places of a GPU are refused, given its existing partitions.
func (r *refused) of(gpuDevice string, there []gpu.Partition) func(gpu.Place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	profiles, places := map[int]bool{}, map[gpu.Place]bool{}
	for id, answer := range r.byGPU[gpuDevice] {
		isGone := func(p gpu.Place) bool {
			return !slices.ContainsFunc(there, func(part gpu.Partition) bool { return part.Place() == p })
		}
		if slices.ContainsFunc(answer.beside, isGone) || time.Since(answer.at) >= refusedFor {
			continue
		}
		profiles[id] = answer.places == nil
		for _, p := range answer.places {
			places[p] = true
		}
	}
	return func(p gpu.Place) bool { return profiles[p.ProfileID] || places[p] }
}

// noteOutcome remembers whether the driver has created the partition of a device, and explains a refusal of a free place.
// before are the other devices of the preparation, whose partitions are removed with it. The caller holds the lock of the GPU.
func (r *refused) noteOutcome(ctx context.Context, b *backend, d *device, before []device, err error) error {
	if err == nil {
		r.forget(d.gpu, d.shape.Profile.ID)
		return nil
	}
	if !errors.Is(err, gpu.ErrInsufficientResources) {
		return err
	}
	all, listErr := b.hardware.Partitions(context.WithoutCancel(ctx), d.shape.GPU)
	if listErr != nil || !d.shape.FitsAlongside(shapesOf(d.shape.GPU, all)) {
		return err // the existing partitions explain the error
	}
	answer := refusedProfile{at: time.Now()}
	for _, part := range all {
		isOwn := func(o device) bool { return o.gpu == d.gpu && o.partition != nil && samePlace(*o.partition, part) }
		if slices.ContainsFunc(before, isOwn) {
			answer.places = append(answer.places, part.Place())
		} else {
			answer.beside = append(answer.beside, part.Place())
		}
	}
	if answer.places != nil {
		answer.places = append(answer.places, d.shape.Place())
	}
	r.note(d.gpu, d.shape.Profile.ID, answer)
	klog.FromContext(ctx).Info("The driver refused to create a partition although its place is free; not allocating it for now",
		"device", d.name, "profile", d.shape.Profile.Name, "partitions", len(all), "reason", err.Error())
	return fmt.Errorf("%w: %w, so such partitions are not allocated on this GPU until another one is destroyed, or for %s: delete the pod "+
		"so that it is scheduled again", err, errRefused, refusedFor)
}

// errRefused marks refusals that noteOutcome has remembered.
var errRefused = errors.New("the driver does not create it though nothing is in its place")
