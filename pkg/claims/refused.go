// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// refusedFor is how long a profile is believed to be refused without another attempt.
const refusedFor = 10 * time.Minute

// refused are the profiles of which the driver creates no partition though nothing lies in its place, by the device name of their GPU:
// it has reasons that neither possible placements nor remaining capacity show. "QA observed only 3 creatable 1g instances on a 61x
// Station even though Free/Total reported 7" (NVIDIA dgx-spark-playbooks, mig-configure). All places of the profile are set aside, as
// each would cost a pod that does not start. They are not known after a restart.
type refused struct {
	mu    sync.Mutex
	byGPU map[string]map[int]refusedProfile
}

// refusedProfile is the driver's answer, while at least certain partitions were there.
type refusedProfile struct {
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

// forget drops what is known of a profile, of which a partition has been created.
func (r *refused) forget(gpuDevice string, profileID int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byGPU[gpuDevice], profileID)
}

// of lists the profiles of a GPU that are refused while some partitions are there. With a partition gone, the driver may think again.
func (r *refused) of(gpuDevice string, there []gpu.Partition) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var profiles []int
	for _, id := range slices.Sorted(maps.Keys(r.byGPU[gpuDevice])) {
		answer := r.byGPU[gpuDevice][id]
		isGone := func(p gpu.Place) bool {
			return !slices.ContainsFunc(there, func(part gpu.Partition) bool { return part.Place() == p })
		}
		if !slices.ContainsFunc(answer.beside, isGone) && time.Since(answer.at) < refusedFor {
			profiles = append(profiles, id)
		}
	}
	return profiles
}

// noteOutcome remembers whether the driver has created the partition of a device, and explains its refusal where nothing lies in the
// way. before are the other devices of the preparation, whose partitions go with it. The caller holds the lock of the GPU.
func (p *Partitions) noteOutcome(ctx context.Context, b *backend, d *device, before []device, err error) error {
	if err == nil {
		p.refused.forget(d.gpu, d.shape.Profile.ID)
		return nil
	}
	if !errors.Is(err, gpu.ErrInsufficientResources) {
		return err
	}
	all, listErr := b.hardware.Partitions(context.WithoutCancel(ctx), d.shape.GPU)
	if listErr != nil || !d.shape.FitsAlongside(shapesOf(d.shape.GPU, all)) {
		return err // what is there says enough
	}
	var beside []gpu.Place
	for _, part := range all {
		isOwn := func(o device) bool { return o.gpu == d.gpu && o.partition != nil && samePlace(*o.partition, part) }
		if !slices.ContainsFunc(before, isOwn) {
			beside = append(beside, part.Place())
		}
	}
	p.refused.note(d.gpu, d.shape.Profile.ID, refusedProfile{beside, time.Now()})
	p.ledger.changed()
	klog.FromContext(ctx).Info("The driver does not create a partition though nothing is in its place; its profile is set aside on the GPU",
		"device", d.name, "profile", d.shape.Profile.Name, "partitions", len(all), "reason", err.Error())
	return fmt.Errorf("%w: the driver does not create it though nothing is in its place, and no more of its profile are allocated on this "+
		"GPU until one of its partitions is gone, or for %s: delete the pod, so that it is scheduled again", err, refusedFor)
}
