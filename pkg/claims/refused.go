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

	"github.com/cleave-dra/cleave/pkg/gpu"
)

// refusedFor is how long a place is believed to be refused without another attempt.
const refusedFor = 10 * time.Minute

// refused are the places in which the driver creates no partition though nothing lies there, by the device name of their GPU: it
// has reasons that neither possible placements nor remaining capacity show. "QA observed only 3 creatable 1g instances on a 61x
// Station even though Free/Total reported 7" (NVIDIA dgx-spark-playbooks, mig-configure). They are not known after a restart.
type refused struct {
	mu    sync.Mutex
	byGPU map[string][]refusedPlace
}

// refusedPlace is the answer for one place, while at least certain partitions were there.
type refusedPlace struct {
	place  gpu.Place
	beside []gpu.Place
	at     time.Time
}

func (r *refused) note(gpuDevice string, next refusedPlace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byGPU == nil {
		r.byGPU = map[string][]refusedPlace{}
	}
	r.byGPU[gpuDevice] = append(r.without(gpuDevice, next.place), next)
}

// forget drops what is known of a place, in which a partition has been created.
func (r *refused) forget(gpuDevice string, place gpu.Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byGPU[gpuDevice]) > 0 {
		r.byGPU[gpuDevice] = r.without(gpuDevice, place)
	}
}

func (r *refused) without(gpuDevice string, place gpu.Place) []refusedPlace {
	return slices.DeleteFunc(slices.Clone(r.byGPU[gpuDevice]), func(o refusedPlace) bool { return o.place == place })
}

// of lists the places of a GPU that are refused while some partitions are there. With a partition gone, the driver may think again.
func (r *refused) of(gpuDevice string, there []gpu.Partition) []gpu.Place {
	r.mu.Lock()
	defer r.mu.Unlock()
	var places []gpu.Place
	for _, o := range r.byGPU[gpuDevice] {
		isThere := func(p gpu.Place) bool {
			return slices.ContainsFunc(there, func(part gpu.Partition) bool { return part.Place() == p })
		}
		lost := slices.ContainsFunc(o.beside, func(p gpu.Place) bool { return !isThere(p) })
		if !lost && time.Since(o.at) < refusedFor {
			places = append(places, o.place)
		}
	}
	return places
}

// noteOutcome remembers whether the driver has created a partition, and explains its refusal where nothing lies in the way. The caller
// holds the lock of the GPU.
func (p *Partitions) noteOutcome(ctx context.Context, b *backend, d *device, err error) error {
	place := gpu.Place{ProfileID: d.shape.Profile.ID, Placement: d.shape.Placement}
	if err == nil {
		p.refused.forget(d.gpu, place)
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
		beside = append(beside, part.Place())
	}
	p.refused.note(d.gpu, refusedPlace{place: place, beside: beside, at: time.Now()})
	p.ledger.changed()
	klog.FromContext(ctx).Info("The driver does not create a partition though nothing is in its place; its device is set aside",
		"device", d.name, "partitions", len(all), "reason", err.Error())
	return fmt.Errorf("%w: the driver does not create it though nothing is in its place, and others are allocated until a partition of the "+
		"GPU is gone: delete the pod, so that it is scheduled again", err)
}
