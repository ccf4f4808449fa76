// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Sharing as NVIDIA's parameters say it.
const (
	slicing      = `{"strategy":"TimeSlicing"}`
	slicingLong  = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}`
	slicingShort = `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Short"}}`
	plainMPS     = `{"strategy":"MPS"}`
)

// migNode is the node of a simulated board with partitions, which offers everything.
func migNode(t *testing.T) *policy.Node {
	t.Helper()
	node := &policy.Node{Node: newSimBed(t, "hgx-h100").session.Node()}
	for range node.GPUs {
		offer := sharedNode().Offers[0]
		offer.Partitions = &policy.PartitionOffer{Mode: policy.OnDemand}
		node.Offers = append(node.Offers, offer)
	}
	return node
}

// deviceResult is an allocated device.
func deviceResult(request, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: testDriver, Pool: testPool, Device: device}
}

func TestPlan_NVIDIAParameters(t *testing.T) {
	node := migNode(t)
	first := node.GPUs[0].PCI.DeviceName()
	whole, part := deviceResult("gpu", first), deviceResult("mig", first+"-mig-19-0")
	shared := shareResult("r", 0, gpu.TimeSlice, "shares=1", "memory=20Gi")
	shared.Device = first + "-timeslice"
	admin := deviceResult("gpu", first)
	yes := true
	admin.AdminAccess = &yes
	config := func(source resourceapi.AllocationConfigSource, kind, sharing string, requests ...string) resourceapi.DeviceAllocationConfiguration {
		return opaque(testDriver, source, nvidiaConfig(kind, sharing), requests...)
	}
	configs := func(c ...resourceapi.DeviceAllocationConfiguration) []resourceapi.DeviceAllocationConfiguration {
		return c
	}
	at := func(interval string) []*records.Share {
		return []*records.Share{{ID: "claim", Kind: gpu.TimeSlice, Exclusive: true, Interval: interval}}
	}
	mps := func(m records.MPS) []*records.Share {
		return []*records.Share{{ID: "claim", Kind: gpu.MPS, Exclusive: true, MPS: &m}}
	}
	none, slice := []*records.Share{nil}, sliceShare(records.Share{Shares: 1, Memory: 20 * gi})
	checkShareCases(t, compatibleID, node, map[string]shareCase{
		"no sharing":                    {whole, configs(config(fromClaim, "GpuConfig", "null")), none},
		"time slicing by default":       {whole, configs(config(fromClaim, "GpuConfig", slicing)), none},
		"default interval":              {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Default"}}`)), none},
		"long interval":                 {whole, configs(config(fromClaim, "GpuConfig", slicingLong, "gpu")), at("Long")},
		"from the class":                {whole, configs(config(fromClass, "GpuConfig", slicingLong, "gpu")), at("Long")},
		"the claim before the class":    {whole, configs(config(fromClaim, "GpuConfig", slicingShort), config(fromClass, "GpuConfig", slicingLong, "gpu")), at("Short")},
		"the claim takes back":          {whole, configs(config(fromClass, "GpuConfig", plainMPS, "gpu"), config(fromClaim, "GpuConfig", slicing)), none},
		"the last of the claim's":       {whole, configs(config(fromClaim, "GpuConfig", slicingShort), config(fromClaim, "GpuConfig", plainMPS)), mps(records.MPS{})},
		"for another request":           {whole, configs(config(fromClaim, "GpuConfig", slicingShort), config(fromClaim, "GpuConfig", plainMPS, "other")), at("Short")},
		"for subrequests":               {deviceResult("main/sub", first), configs(config(fromClaim, "GpuConfig", slicingShort, "main")), at("Short")},
		"partition":                     {part, configs(config(fromClaim, "MigDeviceConfig", slicing, "mig")), none},
		"shared GPU, for another":       {shared, configs(config(fromClaim, "GpuConfig", plainMPS, "other")), slice},
		"admin access":                  {admin, configs(config(fromClaim, "GpuConfig", plainMPS)), none},
		"MPS without wishes":            {whole, configs(config(fromClaim, "GpuConfig", plainMPS)), mps(records.MPS{})},
		"MPS for all users":             {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"multiUser":true}}`)), mps(records.MPS{})},
		"MPS with one limit for all":    {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi"}}`)), mps(records.MPS{Memory: 10 * gi})},
		"MPS with more than there is":   {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"800Gi"}}`)), mps(records.MPS{})},
		"MPS with a limit by number":    {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"5Gi"}}}`)), mps(records.MPS{Memory: 5 * gi})},
		"MPS with a limit by UUID":      {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"`+node.GPUs[0].UUID+`":"5Gi"}}}`)), mps(records.MPS{Memory: 5 * gi})},
		"MPS with no threads":           {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0}}`)), mps(records.MPS{})},
		"MPS with part of the threads":  {whole, configs(config(fromClaim, "GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":30}}`)), mps(records.MPS{ThreadPercentage: 30})},
		"ours for others, NVIDIA's for": {whole, configs(opaque(testDriver, fromClaim, shareConfig(`"mps":{}`), "other"), config(fromClaim, "GpuConfig", slicingShort)), at("Short")},
	})
}

func TestPlan_NVIDIAParametersRefused(t *testing.T) {
	node := migNode(t)
	first, second := node.GPUs[0].PCI.DeviceName(), node.GPUs[1].PCI.DeviceName()
	whole, part := deviceResult("gpu", first), deviceResult("mig", first+"-mig-19-0")
	shared := shareResult("r", 0, gpu.MPS, "shares=1", "cores=10")
	shared.Device = first + "-mps"
	of := func(kind, sharing string, requests ...string) resourceapi.DeviceAllocationConfiguration {
		return opaque(testDriver, fromClaim, nvidiaConfig(kind, sharing), requests...)
	}
	type results []resourceapi.DeviceRequestAllocationResult
	tests := map[string]struct {
		results results
		config  resourceapi.DeviceAllocationConfiguration
		id      Identity
		want    []string
	}{
		"in normal mode":               {results{whole}, of("GpuConfig", slicing), testID, list("opaque configuration 0", "NVIDIA-compatible mode", "--driver-name=gpu.nvidia.com", "ShareConfig")},
		"kind of partitions, named":    {results{whole}, of("MigDeviceConfig", slicing, "gpu"), compatibleID, list(`request "gpu"`, "is a MigDeviceConfig", "of type gpu", "use a GpuConfig")},
		"kind of GPUs, named":          {results{part}, of("GpuConfig", slicing, "mig"), compatibleID, list(`request "mig"`, "is a GpuConfig", "of type mig", "use a MigDeviceConfig")},
		"shared GPU, named":            {results{shared}, of("GpuConfig", plainMPS, "r"), compatibleID, list("is a GpuConfig", "of type mps", "ShareConfig of gpu.cleave.dev/v1alpha1")},
		"MPS on a partition and a GPU": {results{part, whole}, of("MigDeviceConfig", plainMPS, "mig", "gpu"), compatibleID, list(`request "gpu"`, "is a MigDeviceConfig", "of type gpu")},
		"interval of a partition":      {results{part}, of("MigDeviceConfig", slicingLong), compatibleID, list("one interval for all")},
		"other kind":                   {results{whole}, of("VfioDeviceConfig", "null"), compatibleID, list("VfioDeviceConfig cannot be honoured")},
		"MPS of another number":        {results{whole}, of("GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"1":"5Gi"}}}`), compatibleID, list(`request "gpu"`, `device "1"`, node.GPUs[0].UUID)},
		"MPS of two GPUs":              {results{whole, deviceResult("gpu", second)}, of("GpuConfig", plainMPS), compatibleID, list(`request "gpu"`, "opaque configuration 0", "MPS on two devices", first, second, "in a request of its own")},
		"MPS of two requests' GPUs":    {results{whole, deviceResult("second", second)}, of("GpuConfig", plainMPS), compatibleID, list(`request "second"`, "opaque configuration 0", "one MPS server for two devices", first, second, "of its own")},
		"ours for a GPU that is ours":  {results{whole}, opaque(testDriver, fromClaim, shareConfig(`"timeSlice":{}`)), compatibleID, list("sets timeSlice", "of type gpu")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := plan(forDriver(tt.id.Driver, withConfigs(claimOf("u", tt.results...), tt.config)), node, tt.id)
			wantError(t, err, tt.want...)
		})
	}
	node.GPUs[0].ComputeCapability = &gpu.Version{Major: 6, Minor: 1}
	_, err := plan(forDriver(compatibleID.Driver, withConfigs(claimOf("u", whole), of("GpuConfig", plainMPS))), node, compatibleID)
	wantError(t, err, "7.0 (Volta)", "6.1", "TimeSlicing")
}

func TestPlan_MPSServerPerRequest(t *testing.T) {
	b := newCompatibleBed(t)
	b.prepare("a", aloneMPS(0, `"defaultActiveThreadPercentage":50`), aloneMPS(1, "").of("second"))
	b.want("record a", "spec a", "mps 0 a", "mps 1 a")
}

func TestExclusive_MPS(t *testing.T) {
	b := newCompatibleBed(t)
	b.sharing.took()
	got := b.prepare("a", aloneMPS(0, `"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi"`))
	want := deviceFor("gpu", 0)
	want.Share = &records.Share{ID: "claim", Kind: gpu.MPS, Exclusive: true, MPS: &records.MPS{
		ThreadPercentage: 50, Memory: 10 * gi, PipeDir: "/run/mps/" + gpuName(0) + "/pipe", ShmDir: "/run/mps/" + gpuName(0) + "/shm",
	}}
	want.CDIDeviceIDs = append(want.CDIDeviceIDs, testDriver+"/claim=a-"+gpuName(0))
	equal(t, "devices", []records.Device{want}, got)
	start := "StartMPS " + gpuName(0) + " a 50% 10Gi"
	b.wantCalls(start)
	b.prepare("a", aloneMPS(0, `"defaultActiveThreadPercentage":50,"defaultPinnedDeviceMemoryLimit":"10Gi"`)) // the kubelet asks again
	b.wantCalls(start)
	b = b.restart()
	if calls := b.sharing.took(); !slices.Contains(calls, start) {
		t.Errorf("after a restart: %v, want %s", calls, start)
	}
	b.want("record a", "spec a", "mps 0 a")
	b.prepare("a", aloneMPS(0, `"defaultActiveThreadPercentage":20`)) // allocated anew, with other parameters
	b.wantCalls("StopMPS "+gpuName(0)+" a", "StartMPS "+gpuName(0)+" a 20% 0Gi")
	b.unprepare("a")
	b.want()
}

// A policy that shares nothing says what others may have, not how a claim uses a GPU that it has alone.
func TestExclusive_MPSNotOffered(t *testing.T) {
	b := newCompatibleBed(t)
	for i := range b.hardware.node.GPUs {
		b.hardware.node.Offers[i] = policy.Offer{Whole: true}
	}
	b.prepare("a", aloneMPS(0, ""))
	b.prepare("b", aloneAt(1, "Long"))
	whole := b.state()
	b.Recover(t.Context())
	b.want(whole...)
	b.unprepare("a")
	b.unprepare("b")
	b.want()
}

func TestExclusive_IntervalOfSeveralGPUs(t *testing.T) {
	b := newCompatibleBed(t)
	claim := withConfigs(claimOn("a", 0, 1), opaque(testDriver, fromClaim, nvidiaConfig("GpuConfig", slicingLong)))
	mustPrepare(t, b.Preparer, forDriver(b.id.Driver, claim))
	b.want("record a", "interval 0 Long", "interval 1 Long", "spec a")
	b.unprepare("a")
	b.want()
}

func TestExclusive_NotGivenBack(t *testing.T) {
	for name, p := range map[string]part{"interval": aloneAt(0, "Long"), "server": aloneMPS(0, "")} {
		t.Run(name, func(t *testing.T) {
			b := newCompatibleBed(t)
			b.prepare("a", p)
			before := b.state()
			b.sharing.err = func(string) error { return errDown }
			b.unprepare("a")
			b.wantOccupied(gpuName(0), gpuName(0)+"-timeslice", gpuName(0)+"-mps")
			for what, other := range map[types.UID]part{"whole": wholeOf(0), "slice": sliceOf(0, 10), "mps": mpsOf(0, 10, 10), "alone": aloneAt(0, "Short")} {
				wantError(t, b.tryPrepare(what, other), "ns/claim-a (a)")
			}
			if slices.Equal(before, b.state()) {
				t.Error("the record says that the claim has it")
			}
			b.sharing.err = nil
			b.Recover(t.Context())
			b.want()
			b.wantOccupied()
		})
	}
}

func FuzzPlan_NVIDIAParameters(f *testing.F) {
	f.Add("gpu", []byte(nvidiaConfig("GpuConfig", slicingLong)), true)
	f.Add("gpu", []byte(nvidiaConfig("GpuConfig", `{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10Gi","defaultPerDevicePinnedMemoryLimit":{"0":"1Mi"}}}`)), false)
	f.Add("", []byte(nvidiaConfig("MigDeviceConfig", slicing)), false)
	f.Fuzz(func(t *testing.T, request string, raw []byte, named bool) {
		c := opaque(testDriver, fromClaim, string(raw))
		if named {
			c.Requests = []string{request}
		}
		devices, err := plan(forDriver(compatibleID.Driver, withConfigs(claimOf("u", deviceResult(request, gpuName(0))), c)), sharedNode(), compatibleID)
		if err != nil {
			return
		}
		s := devices[0].share
		if s == nil {
			return
		}
		if !s.Exclusive || s.Kind == gpu.MPS && (s.MPS.ThreadPercentage < 0 || s.MPS.ThreadPercentage > 100 || s.MPS.Memory < 0) || s.Kind == gpu.TimeSlice && s.Interval == "" {
			t.Errorf("%q: got %+v", raw, s)
		}
	})
}
