// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// otherDrivers is a device of another driver that has the name of one of ours.
func otherDrivers(request string, i int) resourceapi.DeviceRequestAllocationResult {
	r := result(request, i)
	r.Driver, r.Pool = "nic.example.com", "another-pool"
	return r
}

func opaque(driver string, source resourceapi.AllocationConfigSource, raw string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: source, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(raw)}},
		},
	}
}

func withConfigs(claim *resourceapi.ResourceClaim, configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	claim.Status.Allocation.Devices.Config = configs
	return claim
}

func TestPlan_OrderOfAllocation(t *testing.T) {
	no := false
	notAdmin := result("gpu", 2)
	notAdmin.AdminAccess = &no
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string // request and device
	}{
		"one GPU":                {claimOn("u", 1), list("gpu " + gpuName(1))},
		"several, last first":    {claimOn("u", 3, 0), list("gpu "+gpuName(3), "gpu "+gpuName(0))},
		"no results":             {claimOf("u"), nil},
		"only another driver":    {claimOf("u", otherDrivers("nic", 0)), nil},
		"mixed drivers":          {claimOf("u", otherDrivers("nic", 0), result("gpu", 1), otherDrivers("nic", 2)), list("gpu " + gpuName(1))},
		"admin access":           {claimOf("u", adminResult("watch", 0)), list("watch " + gpuName(0) + " admin")},
		"admin access: false":    {claimOf("u", notAdmin), list("gpu " + gpuName(2))},
		"subrequest":             {claimOf("u", result("main/sub", 0)), list("main/sub " + gpuName(0))},
		"other drivers' configs": {withConfigs(claimOn("u", 0), opaque("nic.example.com", "FromClaim", "nonsense")), list("gpu " + gpuName(0))},
		"config without type":    {withConfigs(claimOn("u", 0), resourceapi.DeviceAllocationConfiguration{}), list("gpu " + gpuName(0))},
		"ours has no devices":    {withConfigs(claimOf("u", otherDrivers("nic", 0)), opaque(testDriver, "FromClaim", "nonsense")), nil},
		"same GPU as admin":      {claimOf("u", result("gpu", 0), adminResult("watch", 0)), list("gpu "+gpuName(0), "watch "+gpuName(0)+" admin")},
		"other driver's names":   {claimOf("u", otherDrivers("nic", 77), result("gpu", 3)), list("gpu " + gpuName(3))},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := plan(tt.claim, nodeOf(4), testID)
			if err != nil {
				t.Fatalf("plan: %v", err)
			}
			var lines []string
			for _, d := range got {
				lines = append(lines, d.request+" "+d.shape.Name()+map[bool]string{true: " admin"}[d.admin])
			}
			equal(t, "plan", tt.want, lines)
		})
	}
}

func TestPlan_Refused(t *testing.T) {
	const kind = `{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"TimeSliceConfig","shares":4}`
	otherPool := result("main", 0)
	otherPool.Pool = "node-2"
	unknown := result("main", 0)
	unknown.Device = "gpu-00ff-00-00-0"
	empty := result("main", 0)
	empty.Device = ""
	unallocated := claimOn("u", 0)
	unallocated.Status.Allocation = nil
	tests := map[string]struct {
		claim *resourceapi.ResourceClaim
		want  []string
	}{
		"not allocated":  {unallocated, []string{"not allocated"}},
		"other pool":     {claimOf("u", otherPool), []string{`request "main"`, `"node-2"`, `"node-1"`}},
		"unknown device": {claimOf("u", unknown), []string{`request "main"`, "gpu-00ff-00-00-0", gpuName(0), "delete the pod"}},
		"empty device":   {claimOf("u", empty), []string{`request "main"`, `""`}},
		"one of two bad": {claimOf("u", result("a", 0), unknown), []string{`request "main"`}},
		"config from the claim for one request": {
			withConfigs(claimOn("u", 0), opaque(testDriver, resourceapi.AllocationConfigSourceClaim, kind, "gpu")),
			[]string{"opaque configuration 0", "from the claim", "requests gpu", `"TimeSliceConfig"`, "ShareConfig"},
		},
		"config from the class": {
			withConfigs(claimOn("u", 0), opaque("nic.example.com", "FromClass", kind), opaque(testDriver, resourceapi.AllocationConfigSourceClass, kind)),
			[]string{"opaque configuration 1", "from the DeviceClass", `"TimeSliceConfig"`},
		},
		"config of another API group": {
			withConfigs(claimOn("u", 0), opaque(testDriver, "FromClaim", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`)),
			[]string{`"resource.nvidia.com/v1beta1"`, `"GpuConfig"`, "gpu.cleave.dev/v1alpha1"},
		},
		"config without parameters": {withConfigs(claimOn("u", 0), opaque(testDriver, "FromClaim", "")), []string{"opaque configuration 0", "JSON"}},
		"config null":               {withConfigs(claimOn("u", 0), opaque(testDriver, "FromClaim", "null")), []string{"apiVersion and kind"}},
		"config array":              {withConfigs(claimOn("u", 0), opaque(testDriver, "FromClaim", "[1]")), []string{"JSON object"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := plan(tt.claim, nodeOf(4), testID)
			wantError(t, err, tt.want...)
		})
	}
}

func TestPlan_NodeWithoutGPUs(t *testing.T) {
	_, err := plan(claimOn("u", 0), &policy.Node{Node: &gpu.Node{}}, testID)
	wantError(t, err, "no GPUs")
}

func TestNewRecord(t *testing.T) {
	claim := claimFor("u", wholeOf(2).of("main/sub"), part{result: adminResult("look", 0)}, sliceOf(1, 20), part{result: adminShare(1, gpu.TimeSlice)})
	devices, err := plan(claim, sharedNode(), testID)
	must(t, err)
	admin, share, seen := deviceFor("look", 0), deviceFor("slice", 1), deviceFor("watch", 1)
	admin.AdminAccess, seen.AdminAccess, seen.ShareID = true, true, "u-3"
	share.Device, seen.Device = gpuName(1)+"-timeslice", gpuName(1)+"-timeslice"
	share.Share = &records.Share{ID: "u-2", Kind: gpu.TimeSlice, Shares: 1, Memory: 20 * gi}
	share.CDIDeviceIDs = append(share.CDIDeviceIDs, testDriver+"/claim=u-"+share.Device)
	want := &records.Record{
		Format: records.Format, BootID: bootNow, Driver: testDriver, Claim: records.Claim{Namespace: "ns", Name: "claim-u", UID: "u"},
		Pods:    []types.UID{"pod-uid"},
		Devices: []records.Device{deviceFor("main/sub", 2), admin, share, seen},
	}
	equal(t, "record", want, newRecord(claim, devices, testID, bootNow, &specDir{}))
}

func TestParentID(t *testing.T) {
	g := &gpu.GPU{PCI: gpu.PCIAddress{Bus: 0x1b}}
	whole := testDriver + "/gpu=" + g.PCI.DeviceName()
	tests := map[string]struct {
		shape gpu.Shape
		want  string
	}{
		"whole GPU":        {g.Whole(), whole},
		"time slice":       {gpu.Shape{GPU: g, Share: gpu.TimeSlice}, whole},
		"partition":        {gpu.Shape{GPU: g, Profile: &gpu.Profile{Name: "1g.24gb"}}, whole + "-mig"},
		"graphics profile": {gpu.Shape{GPU: g, Profile: &gpu.Profile{Name: "1g.24gb+gfx"}}, whole},
	}
	for name, tt := range tests {
		if got := parentID(&specDir{}, tt.shape); got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add("gpu", testDriver, testPool, gpuName(0), true, []byte(`{"apiVersion":"gpu.cleave.dev/v1alpha1","kind":"X"}`))
	f.Add("", "", "", "", false, []byte(nil))
	f.Fuzz(func(t *testing.T, request, driver, pool, device string, admin bool, raw []byte) {
		claim := withConfigs(claimOf("u", resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: driver, Pool: pool, Device: device, AdminAccess: &admin,
		}), opaque(driver, "FromClaim", string(raw), request))
		claim.ObjectMeta = metav1.ObjectMeta{}
		devices, err := plan(claim, nodeOf(2), testID)
		if err == nil && len(devices) > 0 {
			t.Errorf("%q is honoured on a whole GPU, which takes no parameters", raw)
		}
	})
}
