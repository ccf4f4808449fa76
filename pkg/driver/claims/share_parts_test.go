// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// part is one device of a claim, with the parameters of its request.
type part struct {
	result   resourceapi.DeviceRequestAllocationResult
	interval string
	// alone is how the claim shares with itself the whole GPU that it has, as NVIDIA's parameters say.
	alone string
	mps   bool // by MPS
}

// sliceOf is a time slice of the i-th GPU with gibibytes of memory.
func sliceOf(i int, memory int64) part {
	return part{result: shareResult("slice", i, gpu.TimeSlice, "shares=1", fmt.Sprintf("memory=%dGi", memory))}
}

// at asks for an interval.
func (p part) at(interval string) part {
	p.interval = interval
	return p
}

func (p part) of(request string) part {
	p.result.Request = request
	return p
}

// mpsOf is an MPS share of the i-th GPU with percent of its cores and gibibytes of memory.
func mpsOf(i int, cores, memory int64) part {
	return part{result: shareResult("mps", i, gpu.MPS, "shares=1", fmt.Sprintf("cores=%d", cores), fmt.Sprintf("memory=%dGi", memory))}
}

// wholeOf is the whole i-th GPU.
func wholeOf(i int) part { return part{result: result("gpu", i)} }

// aloneAt is the whole i-th GPU, with an interval of its time slices by NVIDIA's parameters.
func aloneAt(i int, interval string) part {
	return part{result: result("gpu", i), interval: interval, alone: slicingAt(interval)}
}

// slicingAt is sharing in time with an interval, as NVIDIA's parameters say it.
func slicingAt(interval string) string {
	return `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"` + interval + `"}}`
}

// aloneMPS is the whole i-th GPU with an MPS server, by NVIDIA's parameters with these members.
func aloneMPS(i int, members string) part {
	return part{result: result("gpu", i), mps: true, alone: `{"strategy":"MPS","mpsConfig":{` + members + `}}`}
}

// nvidiaConfig are NVIDIA's parameters of a kind.
func nvidiaConfig(kind, sharing string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `","sharing":` + sharing + `}`
}

// shareResult is an allocated share; amounts are as in "memory=20Gi".
func shareResult(request string, i int, kind gpu.Share, amounts ...string) resourceapi.DeviceRequestAllocationResult {
	id := types.UID("share-id")
	r := resourceapi.DeviceRequestAllocationResult{
		Request: request, Driver: testDriver, Pool: testPool, Device: gpuName(i) + "-" + string(kind), ShareID: &id,
	}
	for _, a := range amounts {
		name, value, _ := strings.Cut(a, "=")
		if r.ConsumedCapacity == nil {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		r.ConsumedCapacity[resourceapi.QualifiedName(name)] = resource.MustParse(value)
	}
	return r
}

// claimFor is an allocated and reserved claim. Each part has a share ID of its own, as the scheduler gives it.
func claimFor(uid types.UID, parts ...part) *resourceapi.ResourceClaim {
	claim := claimOf(uid)
	devices := &claim.Status.Allocation.Devices
	for i, p := range parts {
		if p.result.ShareID != nil {
			id := types.UID(fmt.Sprintf("%s-%d", uid, i))
			p.result.ShareID = &id
		}
		devices.Results = append(devices.Results, p.result)
		var config string
		switch {
		case p.alone != "" && strings.Contains(p.result.Device, "-mig-"):
			config = nvidiaConfig("MigDeviceConfig", p.alone)
		case p.alone != "":
			config = nvidiaConfig("GpuConfig", p.alone)
		case p.interval != "":
			config = shareConfig(`"timeSlice":{"interval":"` + p.interval + `"}`)
		default:
			continue
		}
		devices.Config = append(devices.Config, opaque(testDriver, fromClaim, config, p.result.Request))
	}
	return claim
}

// shareConfig are opaque parameters with these fields.
func shareConfig(fields string) string {
	return `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"ShareConfig",` + fields + `}`
}
