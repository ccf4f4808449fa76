// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// TestMain keeps the log out of the results: what it says is not under test.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(m.Run())
}

// write makes a file, and the directories that it lacks.
func write(t *testing.T, path, data string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(data), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// shortDir is a directory for sockets, whose paths the kernel wants short.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// shortConfig is a valid configuration with directories below a short one.
func shortConfig(t testing.TB) (c Config, dir string) {
	t.Helper()
	c, dir = validConfig(), shortDir(t)
	c.PluginsDir, c.RegistryDir, c.CDIDir = filepath.Join(dir, "p"), filepath.Join(dir, "r"), filepath.Join(dir, "c")
	for _, d := range []string{c.pluginDir(), c.RegistryDir, c.CDIDir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return c, dir
}

// fakeClaims answers per claim UID.
type fakeClaims struct {
	devices map[types.UID][]records.Device
	errs    map[types.UID]error
	// meet is called inside each Prepare and Unprepare; nil for nothing.
	meet func()
}

func (f *fakeClaims) Prepare(_ context.Context, claim *resourceapi.ResourceClaim) ([]records.Device, error) {
	if f.meet != nil {
		f.meet()
	}
	return f.devices[claim.UID], f.errs[claim.UID]
}

func (f *fakeClaims) Unprepare(_ context.Context, claim records.Claim) error {
	if f.meet != nil {
		f.meet()
	}
	return f.errs[claim.UID]
}

// ignoreMetadata compares devices without what containers may know of them.
var ignoreMetadata = cmpopts.IgnoreFields(kubeletplugin.Device{}, "Metadata")

func newPlugin(claims Claims) *plugin {
	return &plugin{claims: claims, metrics: newMetrics(), inventory: func() *gpu.Node { return nil }, fatal: func(error) {}}
}

func claimsOf(uids ...types.UID) (claims []*resourceapi.ResourceClaim) {
	for _, uid := range uids {
		claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-" + string(uid), UID: uid}})
	}
	return claims
}

func objectsOf(uids ...types.UID) (objects []kubeletplugin.NamespacedObject) {
	for _, uid := range uids {
		objects = append(objects, kubeletplugin.NamespacedObject{
			NamespacedName: types.NamespacedName{Namespace: "ns", Name: "c-" + string(uid)}, UID: uid,
		})
	}
	return objects
}

func TestPrepareResourceClaims(t *testing.T) {
	inUse := errors.New("GPU is in use")
	p := newPlugin(&fakeClaims{
		devices: map[types.UID][]records.Device{
			"a": {
				{Request: "main/sub", Pool: "node-1", Device: "gpu-0", GPU: "gpu-0", UUID: "GPU-0", CDIDeviceIDs: []string{"d/gpu=gpu-0"}},
				{Request: "watch", Pool: "node-1", Device: "gpu-1", AdminAccess: true, GPU: "gpu-1", UUID: "GPU-1", CDIDeviceIDs: []string{"d/gpu=gpu-1"}},
			},
		},
		errs: map[types.UID]error{"b": inUse},
	})
	got, err := p.PrepareResourceClaims(t.Context(), claimsOf("a", "b", "c"))
	if err != nil {
		t.Fatalf("PrepareResourceClaims: %v", err)
	}
	want := map[types.UID]kubeletplugin.PrepareResult{
		"a": {Devices: []kubeletplugin.Device{
			{Requests: []string{"main/sub"}, PoolName: "node-1", DeviceName: "gpu-0", CDIDeviceIDs: []string{"d/gpu=gpu-0"}},
			{Requests: []string{"watch"}, PoolName: "node-1", DeviceName: "gpu-1", CDIDeviceIDs: []string{"d/gpu=gpu-1"}},
		}},
		"b": {Err: inUse},
		"c": {},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateErrors(), ignoreMetadata); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	unprepared, err := p.UnprepareResourceClaims(t.Context(), objectsOf("a", "b", "c"))
	if diff := cmp.Diff(map[types.UID]error{"a": nil, "b": inUse, "c": nil}, unprepared, cmpopts.EquateErrors()); diff != "" || err != nil {
		t.Errorf("answers of Unprepare: %v (-want +got):\n%s", err, diff)
	}
}

// Each claim waits inside the engine until all are there: in line they would never meet.
func TestPrepareResourceClaims_Concurrent(t *testing.T) {
	const n = 4
	uids := []types.UID{"a", "b", "c", "d"}
	arrived, leave := make(chan struct{}), make(chan struct{})
	p := newPlugin(&fakeClaims{meet: func() { arrived <- struct{}{}; <-leave }})
	for name, call := range map[string]func(){
		"prepare":   func() { _, _ = p.PrepareResourceClaims(t.Context(), claimsOf(uids...)) },
		"unprepare": func() { _, _ = p.UnprepareResourceClaims(t.Context(), objectsOf(uids...)) },
	} {
		done := make(chan struct{})
		go func() { call(); close(done) }()
		for range n {
			<-arrived
		}
		for range n {
			leave <- struct{}{}
		}
		<-done
		t.Logf("%s: all met", name)
	}
}

func TestMetrics_Claims(t *testing.T) {
	p := newPlugin(&fakeClaims{errs: map[types.UID]error{"b": errors.New("no")}})
	p.record = func(types.UID) *records.Record {
		return &records.Record{Devices: []records.Device{{Share: &records.Share{Kind: gpu.TimeSlice}}}}
	}
	claims := claimsOf("a", "b", "c")
	claims[0].Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Device: "nic-0"}, {Device: "gpu-0000-1b-00-0-mig-19-6"}}}}
	_, _ = p.PrepareResourceClaims(t.Context(), claims)
	_, _ = p.UnprepareResourceClaims(t.Context(), objectsOf("a"))
	got := slices.DeleteFunc(series(t, p.metrics.claims), func(s string) bool { return strings.HasSuffix(s, " 0") })
	var want []string
	for _, labels := range []string{"operation=prepare,outcome=error,tier=none", "operation=prepare,outcome=ok,tier=mig",
		"operation=prepare,outcome=ok,tier=none", "operation=unprepare,outcome=ok,tier=timeSlice"} {
		want = append(want, "cleave_claim_duration_seconds{"+labels+"} 1")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

func TestToKubelet(t *testing.T) {
	share := func(id string) records.Device {
		return records.Device{Request: "r", Pool: "p", Device: "gpu-0-mps", CDIDeviceIDs: []string{"c"}, Share: &records.Share{ID: id}}
	}
	device := func(id *types.UID) kubeletplugin.Device {
		return kubeletplugin.Device{Requests: []string{"r"}, PoolName: "p", DeviceName: "gpu-0-mps", CDIDeviceIDs: []string{"c"}, ShareID: id}
	}
	one, two := types.UID("one"), types.UID("two")
	whole := share("")
	whole.Share = nil
	alone := share(records.ExclusiveID)
	alone.Share.Exclusive = true
	admin := share("")
	admin.Share, admin.ShareID = nil, "two"
	want := []kubeletplugin.Device{device(&one), device(&two), device(nil), device(nil), device(&two)}
	if diff := cmp.Diff(want, toKubelet([]records.Device{share("one"), share("two"), whole, alone, admin}, nil), ignoreMetadata); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// The helper appends the CDI device of the device metadata to each answer. Two pods of a claim may be prepared at once, by one record,
// whose slices have spare capacity if it was read from disk.
func TestToKubelet_HelperAppends(t *testing.T) {
	recorded := []records.Device{{Request: "r", Device: "gpu-0", CDIDeviceIDs: append(make([]string, 0, 4), "c")}}
	one, two := toKubelet(recorded, nil)[0], toKubelet(recorded, nil)[0]
	first, second := append(one.CDIDeviceIDs, "of one"), append(two.CDIDeviceIDs, "of the other") //nolint:gocritic // as the helper does
	if diff := cmp.Diff([][]string{{"c", "of one"}, {"c", "of the other"}}, [][]string{first, second}); diff != "" {
		t.Errorf("CDI devices of two answers (-want +got):\n%s", diff)
	}
}
