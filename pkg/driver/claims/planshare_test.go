// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

const (
	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim
)

// sharesOf are the shares of planned devices, in order; nil for what is none.
func sharesOf(devices []device) []*records.Share {
	var shares []*records.Share
	for _, d := range devices {
		shares = append(shares, d.share)
	}
	return shares
}

// adminShare looks at a shared GPU. The allocator gives a share ID to admin access, too (allocateDevice of its incubating version).
func adminShare(i int, kind gpu.Share) resourceapi.DeviceRequestAllocationResult {
	r := adminResult("watch", i)
	r.Device += "-" + string(kind)
	id := types.UID("watched")
	r.ShareID = &id
	return r
}

// shareCase is a device that a claim was allocated, with parameters, and the share that it is to be.
type shareCase struct {
	result  resourceapi.DeviceRequestAllocationResult
	configs []resourceapi.DeviceAllocationConfiguration
	want    []*records.Share
}

func checkShareCases(t *testing.T, id Identity, node *policy.Node, tests map[string]shareCase) {
	t.Helper()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := plan(forDriver(id.Driver, withConfigs(claimOf("u", tt.result), tt.configs...)), node, id)
			if err != nil {
				t.Fatalf("plan: %v", err)
			}
			equal(t, "shares", tt.want, sharesOf(got))
		})
	}
}

func shareParameters(source resourceapi.AllocationConfigSource, fields string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return opaque(testDriver, source, shareConfig(fields), requests...)
}

func sliceShare(s records.Share) []*records.Share {
	s.ID, s.Kind = "share-id", gpu.TimeSlice
	return []*records.Share{&s}
}

func TestPlan_TimeSlice(t *testing.T) {
	checkShareCases(t, testID, sharedNode(), map[string]shareCase{
		"time slice":                         {shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory=20Gi"), nil, sliceShare(records.Share{Shares: 1, Memory: 20 * gi})},
		"time slice of a board without more": {shareResult("r", 0, gpu.TimeSlice), nil, sliceShare(records.Share{})},
		"several shares in one":              {shareResult("r", 0, gpu.TimeSlice, "shares=3", "memory=1Gi"), nil, sliceShare(records.Share{Shares: 3, Memory: gi})},
		"capacities of later releases":       {shareResult("r", 0, gpu.TimeSlice, "shares=1", "later=0.1"), nil, sliceShare(records.Share{Shares: 1})},
		"a part of a gibibyte":               {shareResult("r", 0, gpu.TimeSlice, "memory=1.5Gi"), nil, sliceShare(records.Share{Memory: 3 * gi / 2})},
		"powers of ten":                      {shareResult("r", 0, gpu.TimeSlice, "memory=20G"), nil, sliceShare(records.Share{Memory: 20e9})},
		"all bytes there can be":             {shareResult("r", 0, gpu.TimeSlice, "memory=9223372036854775807"), nil, sliceShare(records.Share{Memory: 1<<63 - 1})},
		"more than any board has":            {shareResult("r", 0, gpu.TimeSlice, "memory=1000P"), nil, sliceShare(records.Share{Memory: 1e18})},
	})
}

func TestPlan_TimeSliceInterval(t *testing.T) {
	const short, long = `"timeSlice":{"interval":"Short"}`, `"timeSlice":{"interval":"Long"}`
	timeSlice := shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory=20Gi")
	sub := shareResult("main/sub", 0, gpu.TimeSlice, "shares=1", "memory=20Gi")
	withInterval := func(interval string) []*records.Share {
		return sliceShare(records.Share{Shares: 1, Memory: 20 * gi, Interval: interval})
	}
	checkShareCases(t, testID, sharedNode(), map[string]shareCase{
		"interval from the claim":   {timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, long)}, withInterval("Long")},
		"interval from the class":   {timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClass, long, "r")}, withInterval("Long")},
		"time slice without a wish": {timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"timeSlice":{}`)}, withInterval("")},
		"the claim before the class": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClass, short, "r"), shareParameters(fromClaim, long)}, withInterval("Long"),
		},
		"the claim before the class, in whatever order they are listed": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, long), shareParameters(fromClass, short, "r")}, withInterval("Long"),
		},
		"the last of the claim's": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, short, "r"), shareParameters(fromClaim, long)}, withInterval("Long"),
		},
		"the last replaces all of the one before": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClass, short, "r"), shareParameters(fromClaim, `"timeSlice":{}`, "r")}, withInterval(""),
		},
		"one for another request": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, short), shareParameters(fromClaim, `"mps":{}`, "other")}, withInterval("Short"),
		},
		"one of another driver": {
			timeSlice, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, short), opaque("nic.example.com", fromClaim, "nonsense")}, withInterval("Short"),
		},
		"subrequest, named whole":      {sub, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, long, "main/sub")}, withInterval("Long")},
		"subrequest, named by request": {sub, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, long, "main")}, withInterval("Long")},
		"subrequest, another is named": {sub, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"mps":{}`, "main/mps")}, withInterval("")},
		"subrequest, only its own name": {
			sub, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, long, "sub")}, withInterval(""),
		},
		"admin access with parameters for what it sees": {adminShare(0, gpu.TimeSlice), []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClass, long)}, []*records.Share{nil}},
	})
}

func TestPlan_MPS(t *testing.T) {
	mps := func(s records.Share, m records.MPS) []*records.Share {
		s.ID, s.Kind, s.MPS = "share-id", gpu.MPS, &m
		return []*records.Share{&s}
	}
	quarter := shareResult("r", 0, gpu.MPS, "shares=1", "cores=25", "memory=20Gi")
	quarterShare := records.Share{Shares: 1, Cores: 25, Memory: 20 * gi}
	checkShareCases(t, testID, sharedNode(), map[string]shareCase{
		"MPS": {quarter, nil, mps(quarterShare, records.MPS{ThreadPercentage: 25, Memory: 20 * gi})},
		"MPS of a board without more": {
			shareResult("r", 0, gpu.MPS, "shares=1"), nil, mps(records.Share{Shares: 1}, records.MPS{ThreadPercentage: 100}),
		},
		"MPS, lowered": {
			quarter, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"mps":{"activeThreadPercentage":10,"pinnedDeviceMemoryLimit":"5Gi","priority":"BelowNormal"}`)},
			mps(quarterShare, records.MPS{ThreadPercentage: 10, Memory: 5 * gi, BelowNormal: true}),
		},
		"MPS, lowered to a part of a gibibyte": {
			quarter, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"mps":{"pinnedDeviceMemoryLimit":"1.5Gi"}`)},
			mps(quarterShare, records.MPS{ThreadPercentage: 25, Memory: 3 * gi / 2}),
		},
		"MPS, just what was allocated": {
			quarter, []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"mps":{"activeThreadPercentage":25,"pinnedDeviceMemoryLimit":"20Gi","priority":"Normal"}`)},
			mps(quarterShare, records.MPS{ThreadPercentage: 25, Memory: 20 * gi}),
		},
		"MPS limits where the device counts none": {
			shareResult("r", 0, gpu.MPS), []resourceapi.DeviceAllocationConfiguration{shareParameters(fromClaim, `"mps":{"activeThreadPercentage":40,"pinnedDeviceMemoryLimit":"5Gi"}`)},
			mps(records.Share{}, records.MPS{ThreadPercentage: 40, Memory: 5 * gi}),
		},
		"MPS, the claim's replace all of the class's": {
			quarter, []resourceapi.DeviceAllocationConfiguration{
				shareParameters(fromClass, `"mps":{"activeThreadPercentage":10,"priority":"BelowNormal"}`, "r"), shareParameters(fromClaim, `"mps":{"pinnedDeviceMemoryLimit":"5Gi"}`),
			},
			mps(quarterShare, records.MPS{ThreadPercentage: 25, Memory: 5 * gi}),
		},
		"admin access to a shared GPU is no share": {adminShare(0, gpu.MPS), nil, []*records.Share{nil}},
	})
}

func TestPlan_ShareRefused(t *testing.T) {
	withoutID := shareResult("r", 0, gpu.TimeSlice, "shares=1")
	withoutID.ShareID = nil
	timeSlice := shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory=20Gi")
	mps := shareResult("r", 0, gpu.MPS, "shares=1", "cores=25", "memory=20Gi")
	tests := map[string]struct {
		result resourceapi.DeviceRequestAllocationResult
		fields string // of an opaque configuration, if any
		want   []string
	}{
		"no shareID":           {withoutID, "", []string{`request "r"`, gpuName(0) + "-timeslice", "DRAConsumableCapacity"}},
		"half a share":         {shareResult("r", 0, gpu.TimeSlice, "shares=500m"), "", []string{`request "r"`, "shares", "500m", "whole number"}},
		"negative memory":      {shareResult("r", 0, gpu.TimeSlice, "memory=-1"), "", []string{"memory", "-1", "whole number"}},
		"memory without bound": {shareResult("r", 0, gpu.TimeSlice, "memory=1e30"), "", []string{"memory", "1e30"}},
		"cores, tiny":          {shareResult("r", 0, gpu.MPS, "cores=1n"), "", []string{"cores", "1n"}},

		"MPS parameters for a time slice":         {timeSlice, `"mps":{"activeThreadPercentage":10}`, []string{`request "r"`, "opaque configuration 0", "from the claim", "sets mps", "of type timeslice"}},
		"time slice parameters for MPS":           {mps, `"timeSlice":{"interval":"Long"}`, []string{"sets timeSlice", "of type mps"}},
		"both for MPS":                            {mps, `"timeSlice":{},"mps":{}`, []string{"sets timeSlice", "of type mps"}},
		"parameters for a whole GPU":              {result("r", 0), `"timeSlice":{}`, []string{"sets timeSlice", "of type gpu", "remove it"}},
		"admin access with those of another tier": {adminShare(0, gpu.TimeSlice), `"mps":{}`, []string{`request "watch"`, "sets mps", "of type timeslice"}},

		"more threads than allocated":   {mps, `"mps":{"activeThreadPercentage":26}`, []string{"activeThreadPercentage 26", "25 percent", "request more cores"}},
		"more memory than allocated":    {mps, `"mps":{"pinnedDeviceMemoryLimit":"21Gi"}`, []string{"pinnedDeviceMemoryLimit 21Gi", "the 20Gi allocated to the claim", "request more memory"}},
		"a byte more than allocated":    {mps, `"mps":{"pinnedDeviceMemoryLimit":"21474836481"}`, []string{"pinnedDeviceMemoryLimit"}},
		"part of a byte more":           {mps, `"mps":{"pinnedDeviceMemoryLimit":"21474836480500m"}`, []string{"pinnedDeviceMemoryLimit"}},
		"a limit beyond all memory":     {mps, `"mps":{"pinnedDeviceMemoryLimit":"1e30"}`, []string{"pinnedDeviceMemoryLimit"}},
		"the same, and none is counted": {shareResult("r", 0, gpu.MPS), `"mps":{"pinnedDeviceMemoryLimit":"1e30"}`, []string{"pinnedDeviceMemoryLimit"}},
		"no threads":                    {mps, `"mps":{"activeThreadPercentage":0}`, []string{"activeThreadPercentage"}},
		"hardly any memory":             {mps, `"mps":{"pinnedDeviceMemoryLimit":"1Ki"}`, []string{"pinnedDeviceMemoryLimit"}},
		"unknown interval":              {timeSlice, `"timeSlice":{"interval":"Forever"}`, []string{"opaque configuration 0", "Forever", "Long"}},
		"unknown priority":              {mps, `"mps":{"priority":"High"}`, []string{"priority", "High", "BelowNormal"}},
		"unknown field":                 {mps, `"mps":{"activeThreads":10}`, []string{"activeThreads"}},
		"nothing":                       {mps, `"mps":null`, []string{"set timeSlice or mps"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			claim := claimOf("u", tt.result)
			if tt.fields != "" {
				claim = withConfigs(claim, opaque(testDriver, fromClaim, shareConfig(tt.fields)))
			}
			_, err := plan(claim, sharedNode(), testID)
			wantError(t, err, tt.want...)
		})
	}
}

func TestPlan_TierNotOffered(t *testing.T) {
	node := sharedNode()
	node.Offers[0].MPS = nil
	_, err := plan(claimFor("u", mpsOf(0, 10, 8)), node, testID)
	wantError(t, err, gpuName(0)+"-mps", "is not on this node")
}

// A container knows one MPS server only, so a request, which a container has as a whole, must not have shares of two.
func TestPlan_MPSSharesOfTwoGPUs(t *testing.T) {
	_, err := plan(claimFor("u", mpsOf(0, 10, 8), mpsOf(1, 10, 8)), sharedNode(), testID)
	wantError(t, err, "it has MPS shares of two devices")
}

func FuzzPlan_Share(f *testing.F) {
	f.Add(true, "20Gi", "25", "1", []byte(shareConfig(`"mps":{"activeThreadPercentage":10,"pinnedDeviceMemoryLimit":"5Gi"}`)), "r")
	f.Add(false, "20Gi", "", "1", []byte(shareConfig(`"timeSlice":{"interval":"Long"}`)), "r/sub")
	f.Add(true, "1e30", "1n", "-1", []byte(`{`), "")
	f.Fuzz(func(t *testing.T, mps bool, memory, cores, shares string, raw []byte, request string) {
		kind := gpu.TimeSlice
		if mps {
			kind = gpu.MPS
		}
		r := shareResult(request, 0, kind)
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		for name, text := range map[resourceapi.QualifiedName]string{"memory": memory, "cores": cores, "shares": shares} {
			if q, err := resource.ParseQuantity(text); err == nil {
				r.ConsumedCapacity[name] = q
			}
		}
		claim := withConfigs(claimOf(types.UID("u"), r), opaque(testDriver, fromClaim, string(raw)))
		devices, err := plan(claim, sharedNode(), testID)
		if err != nil {
			return
		}
		s := devices[0].share
		if s.Memory < 0 || s.Cores < 0 || s.Shares < 0 || mps != (s.MPS != nil) {
			t.Fatalf("got %+v", s)
		}
		if m := s.MPS; m != nil {
			if s.Memory > 0 && m.Memory > s.Memory || s.Cores > 0 && m.ThreadPercentage > s.Cores || m.Memory < 0 || m.ThreadPercentage < 1 {
				t.Errorf("got limits %+v of a share of %d bytes and %d percent", m, s.Memory, s.Cores)
			}
		}
	})
}
