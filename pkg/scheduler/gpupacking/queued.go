// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/tools/pools"
)

// What rejects a pod that finds no room; values of a metric's label.
const (
	byRoom     = "room"
	byTopology = "topology"
)

// rejectedBy is what rejects a pod for which no node has room: topology, if it had room without the constraints of its claims.
func rejectedBy(ctx context.Context, p *Plugin, among eligible, q query, specs []*resourceapi.ResourceClaimSpec) string {
	loose, constrained := make([]*resourceapi.ResourceClaimSpec, 0, len(specs)), false
	for _, spec := range specs {
		without := *spec
		without.Devices.Constraints = nil
		loose, constrained = append(loose, &without), constrained || len(spec.Devices.Constraints) > 0
	}
	if !constrained {
		return byRoom
	}
	demand, err := pools.NewDemand(p.dra.DeviceClasses().Get, loose...)
	if err != nil {
		return byRoom
	}
	q.demand, q.most = demand, 1
	if len(p.cluster.choose(ctx, q, slices.Concat(among.free, among.busy)).best) > 0 {
		return byTopology
	}
	return byRoom
}

// firstClass is the DeviceClass of the first request.
func firstClass(specs []*resourceapi.ResourceClaimSpec) string {
	for _, spec := range specs {
		for i := range spec.Devices.Requests {
			switch r := &spec.Devices.Requests[i]; {
			case r.Exactly != nil:
				return r.Exactly.DeviceClassName
			case len(r.FirstAvailable) > 0:
				return r.FirstAvailable[0].DeviceClassName
			}
		}
	}
	return ""
}

// firstTimes are the times of pods' first attempts.
type firstTimes struct{ remembered[time.Time] }

// note notes an attempt, unless there was an earlier one.
func (f *firstTimes) note(pod types.UID, at time.Time) {
	if _, known := f.get(pod); !known {
		f.put(pod, at)
	}
}

// end is the time of the first attempt of a pod that makes no more.
func (f *firstTimes) end(pod types.UID) (first time.Time, ok bool) {
	first, ok = f.get(pod)
	f.remove(pod)
	return first, ok
}
