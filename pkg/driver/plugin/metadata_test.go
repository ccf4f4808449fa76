// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// metadataBed is a plugin that serves a kubelet, with claims that a test gives records.
type metadataBed struct {
	*service
	t       testing.TB
	kubelet drapb.DRAPluginClient
	claims  *fakeClaims
	store   *records.Store
}

func newMetadataBed(t testing.TB, names ...string) *metadataBed {
	t.Helper()
	config, _ := shortConfig(t)
	b := &metadataBed{t: t, service: newService(config), claims: &fakeClaims{devices: map[types.UID][]records.Device{}}}
	var err error
	if b.store, err = records.OpenStore(store.Disk{}, filepath.Join(config.nodeDir(), records.ClaimsDir)); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	b.client = client
	for _, name := range names {
		if err := client.Tracker().Add(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name),
			Annotations: map[string]string{resourceapi.PodResourceClaimAnnotation: "of-template"}},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}); err != nil {
			t.Fatal(err)
		}
	}
	helper, err := b.service.kubelet.serve(t.Context(), client, config.DriverName, "", &plugin{
		claims: b.claims, metrics: b.metrics, health: &b.health, inventory: func() *gpu.Node { return nil }, fatal: func(error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	conn, err := grpc.NewClient("unix://"+filepath.Join(config.pluginDir(), "dra.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b.kubelet = drapb.NewDRAPluginClient(conn)
	return b
}

func metadataClaim(name string) *drapb.Claim {
	return &drapb.Claim{Namespace: "ns", Name: name, Uid: "uid-" + name}
}

// restorer restores the claims' metadata.
func (b *metadataBed) restorer() claimMetadata {
	return claimMetadata{kubelet: &b.service.kubelet, client: b.client, inventory: func() *gpu.Node { return nil }}
}

// prepare prepares a claim for some requests with one partition each, and returns the CDI devices of the first.
func (b *metadataBed) prepare(name string, requests ...string) []string {
	b.t.Helper()
	r := &records.Record{Format: records.Format, Driver: "gpu.cleave.dev", BootID: "boot", Claim: records.Claim{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	ci := 0
	for _, request := range requests {
		r.Devices = append(r.Devices, records.Device{Request: request, Pool: "node-1", Device: "gpu-0000-1b-00-0-mig-19-0", GPU: "gpu-0000-1b-00-0", UUID: "GPU-1",
			Partition: &gpu.Partition{ProfileID: 19, GI: 7, CI: &ci, UUID: "MIG-" + request}, CDIDeviceIDs: []string{"d/c=x"}})
	}
	b.claims.devices[r.Claim.UID] = r.Devices
	if err := b.store.Write(r); err != nil {
		b.t.Fatal(err)
	}
	answer, err := b.kubelet.NodePrepareResources(b.t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{metadataClaim(name)}})
	if err != nil {
		b.t.Fatal(err)
	}
	return answer.Claims[string(r.Claim.UID)].Devices[0].CdiDeviceIds
}

// files lists what there is of device metadata.
func (b *metadataBed) files() []string {
	b.t.Helper()
	var all []string
	if err := filepath.WalkDir(b.config.CDIDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(b.config.CDIDir, path)
			all = append(all, strings.TrimPrefix(rel, b.config.DriverName+"-metadata/"))
		}
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

func TestMetadata_PrepareAndUnprepare(t *testing.T) {
	b := newMetadataBed(t, "a")
	if diff := cmp.Diff([]string{"d/c=x", "gpu.cleave.dev/metadata=uid-a_main"}, b.prepare("a", "main", "other/sub")); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	want := []string{"gpu.cleave.dev_metadata_uid-a_main.json", "gpu.cleave.dev_metadata_uid-a_other.json", "ns_a/main/metadata.json", "ns_a/other/metadata.json"}
	if diff := cmp.Diff(want, b.files()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(filepath.Join(b.config.pluginDir(), metadataDir, "ns_a", "other", "metadata.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got metadatav1beta1.DeviceMetadata
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&got); err != nil || decoder.More() {
		t.Fatalf("not one JSON document: %s, %v", data, err)
	}
	device := got.Requests[0].Devices[0]
	if uuid := device.Attributes["uuid"].StringValue; got.Requests[0].Name != "other/sub" || uuid == nil || *uuid != "MIG-other/sub" {
		t.Errorf("got %s", data)
	}
	if _, err := b.kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{metadataClaim("a")}}); err != nil {
		t.Fatal(err)
	}
	if got := b.files(); len(got) > 0 {
		t.Errorf("after Unprepare: %v", got)
	}
}

// What a kill or a release without Unprepare leaves is removed, and what claims have stays.
func TestMetadata_Sweep(t *testing.T) {
	stays := []string{"gpu.cleave.dev_metadata_uid-stays_main.json", "ns_stays/main/metadata.json"}
	all := []string{"gpu.cleave.dev_metadata_uid-a_main.json", stays[0], "ns_a/main/metadata.json", stays[1]}
	const another = "nic.example.com_metadata_uid-x_main.json"
	write := func(dir, name string) error { return os.WriteFile(filepath.Join(dir, name), []byte("?"), 0o600) }
	tests := map[string]struct {
		leave func(b *metadataBed) error
		want  []string
	}{
		"nothing left": {func(*metadataBed) error { return nil }, all},
		"no record":    {func(b *metadataBed) error { return b.store.Remove("uid-a") }, stays},
		"no records":   {func(b *metadataBed) error { return errors.Join(b.store.Remove("uid-a"), b.store.Remove("uid-stays")) }, nil},
		"killed while writing": {func(b *metadataBed) error {
			return write(b.config.CDIDir, ".gpu.cleave.dev_metadata_uid-x_main.json.123")
		}, all},
		"corrupt record": {func(b *metadataBed) error { return write(b.store.Dir(), "uid-a.json") }, all},
		"corrupt record, set aside": {func(b *metadataBed) error {
			_, err := b.store.SetAside("uid-a")
			return err
		}, all},
		"set aside, and the claim is gone": {func(b *metadataBed) error {
			_, err := b.store.SetAside("uid-a")
			return errors.Join(err, b.restorer().Remove(b.config.DriverName, "uid-a"))
		}, stays},
		"another driver": {func(b *metadataBed) error { return write(b.config.CDIDir, another) }, slices.Insert(slices.Clone(all), 2, another)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newMetadataBed(t, "a", "stays", "again")
			b.prepare("a", "main")
			b.prepare("stays", "main")
			if err := tt.leave(b); err != nil {
				t.Fatal(err)
			}
			b.service.kubelet.metadata.sweep(t.Context(), &b.config, b.config.DriverName)
			if diff := cmp.Diff(tt.want, b.files()); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if got := b.prepare("again", "main"); len(got) != 2 {
				t.Errorf("got CDI devices %v after a sweep, want one for metadata", got)
			}
		})
	}
}

// What something else deletes is written again as it was.
func TestMetadata_Restore(t *testing.T) {
	const spec, file = "gpu.cleave.dev_metadata_uid-a_other.json", "gpu.cleave.dev-metadata/ns_a/other/metadata.json"
	for name, deleted := range map[string][]string{
		"all": {"*"}, "spec": {spec}, "file": {file}, "directory": {"gpu.cleave.dev-metadata"}, "nothing": nil,
		"contents": nil, // it was being written when the plugin was killed
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetadataBed(t, "a")
			b.prepare("a", "main", "other/sub")
			r, err := b.store.Read("uid-a")
			if err != nil {
				t.Fatal(err)
			}
			before := b.contents()
			for _, pattern := range deleted {
				paths, err := filepath.Glob(filepath.Join(b.config.CDIDir, pattern))
				if err := errors.Join(err, removeAll(paths)); err != nil {
					t.Fatal(err)
				}
			}
			if name == "contents" {
				if err := os.Truncate(filepath.Join(b.config.CDIDir, file), 0); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := b.restorer().Has(r), name == "nothing"; got != want {
				t.Errorf("the metadata is complete: %t, want %t", got, want)
			}
			if err := b.restorer().Restore(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, b.contents()); diff != "" || !b.restorer().Has(r) {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
			if _, err := b.kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{metadataClaim("a")}}); err != nil {
				t.Fatal(err)
			}
			if got := b.files(); len(got) > 0 {
				t.Errorf("after Unprepare: %v", got)
			}
		})
	}
}

// contents are those of the files.
func (b *metadataBed) contents() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	for _, name := range b.files() {
		path := filepath.Join(b.config.CDIDir, name)
		if strings.HasPrefix(name, "ns_") {
			path = filepath.Join(metadataTarget(&b.config, b.config.DriverName), name)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			b.t.Fatal(err)
		}
		all[name] = string(data)
	}
	return all
}

func TestMetadata_RestoreFails(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(b *metadataBed, r *records.Record) error
		says  string
	}{
		"claim is gone": {func(_ *metadataBed, r *records.Record) error {
			r.Claim.Name = "b"
			return nil
		}, "not found"},
		"claim is another": {func(_ *metadataBed, r *records.Record) error {
			r.Claim.UID = "uid-b"
			return nil
		}, "got replaced"},
		"cannot be written": {func(b *metadataBed, _ *records.Record) error { // no directory
			return os.WriteFile(filepath.Join(metadataTarget(&b.config, b.config.DriverName), "ns_a"), nil, 0o600)
		}, "the helper failed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newMetadataBed(t, "a")
			b.prepare("a", "main")
			r, err := b.store.Read("uid-a")
			if err := errors.Join(err, removeMetadata(&b.config, b.config.DriverName), tt.spoil(b, r)); err != nil {
				t.Fatal(err)
			}
			if err := b.restorer().Restore(t.Context(), r); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error with %q", err, tt.says)
			}
		})
	}
}

// The helper writes metadata after the record, as part of the kubelet's call.
func TestMetadata_BeingWritten(t *testing.T) {
	b := newMetadataBed(t)
	r := &records.Record{Driver: b.config.DriverName, Claim: records.Claim{Namespace: "ns", Name: "a", UID: "uid-a"}, Devices: []records.Device{{Request: "main"}}}
	for _, preparing := range []types.UID{"uid-a", "uid-b"} {
		_, end := b.service.kubelet.inflight.begin(t.Context(), []types.UID{preparing})
		if got, want := b.restorer().Has(r), preparing == "uid-a"; got != want {
			t.Errorf("while %s is prepared: the metadata is complete: %t, want %t", preparing, got, want)
		}
		end()
	}
}

// Claims get their metadata also after the directory was removed, and after another one was configured.
func TestMetadata_DirectoryGone(t *testing.T) {
	b := newMetadataBed(t, "a", "b")
	want := func(name string) {
		t.Helper()
		if diff := cmp.Diff([]string{"d/c=x", "gpu.cleave.dev/metadata=uid-" + name + "_main"}, b.prepare(name, "main")); diff != "" {
			t.Errorf("CDI devices of %s (-want +got):\n%s", name, diff)
		}
		if _, err := os.Stat(filepath.Join(b.config.pluginDir(), metadataDir, "ns_"+name, "main", "metadata.json")); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(metadataTarget(&b.config, b.config.DriverName)); err != nil {
		t.Fatal(err)
	}
	want("a")
	if diff := cmp.Diff([]string{b.config.CDIDir, b.config.pluginDir()}, metadataPlaces(&b.config)); diff != "" {
		t.Errorf("places of metadata (-want +got):\n%s", diff)
	}
	other := b.config
	other.CDIDir = filepath.Join(filepath.Dir(b.config.CDIDir), "other")
	if err := new(metadataFiles).open(&other, other.DriverName); err != nil {
		t.Fatal(err)
	}
	want("b")
	if entries, err := os.ReadDir(metadataTarget(&other, other.DriverName)); err != nil || len(entries) != 1 {
		t.Errorf("the link does not lead to the new directory: %v, %v", entries, err)
	}
	wantPlaces := func(when string, want []string) { // everywhere until no container can have the earlier directory's
		t.Helper()
		new(metadataFiles).sweep(t.Context(), &other, other.DriverName)
		if diff := cmp.Diff(want, metadataPlaces(&other)); diff != "" {
			t.Errorf("places of metadata %s (-want +got):\n%s", when, diff)
		}
	}
	wantPlaces("with claims", nil)
	if err := errors.Join(os.RemoveAll(b.config.CDIDir), b.store.Remove("uid-a"), b.store.Remove("uid-b")); err != nil {
		t.Fatal(err)
	}
	wantPlaces("without claims", []string{other.CDIDir, other.pluginDir()})
}

// A claim whose metadata cannot be written is prepared all the same, and counted.
func TestMetadata_WriteFails(t *testing.T) {
	b := newMetadataBed(t, "a")
	write(t, filepath.Join(b.config.pluginDir(), metadataDir, "ns_a"), "") // no directory
	if diff := cmp.Diff([]string{"d/c=x"}, b.prepare("a", "main")); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
	if got := testutil.ToFloat64(b.metrics.metadataFailures); got != 1 {
		t.Errorf("%v failures were counted, want 1", got)
	}
}

// What one plugin wrote, the next one removes, which has not written it.
func TestMetadata_WrittenByAnother(t *testing.T) {
	b := newMetadataBed(t, "a")
	b.prepare("a", "main", "other")
	b.service.kubelet.metadata.specs = nil
	if _, err := b.kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{metadataClaim("a")}}); err != nil {
		t.Fatal(err)
	}
	if got := b.files(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}

// A claim whose metadata cannot be removed is unprepared all the same, and sweep removes what is left.
func TestMetadata_RemovalFails(t *testing.T) {
	b := newMetadataBed(t, "a")
	b.prepare("a", "main")
	spec := filepath.Join(b.config.CDIDir, "gpu.cleave.dev_metadata_uid-a_main.json")
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(spec, "in-the-way"), 0o700); err != nil { // no file, so that Remove fails
		t.Fatal(err)
	}
	answer, err := b.kubelet.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{metadataClaim("a")}})
	if err != nil || answer.Claims["uid-a"].Error != "" {
		t.Errorf("got %v, %v", answer, err)
	}
	if err := b.store.Remove("uid-a"); err != nil {
		t.Fatal(err)
	}
	b.service.kubelet.metadata.sweep(t.Context(), &b.config, b.config.DriverName)
	if _, err := os.Lstat(spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a sweep: %v", err)
	}
	if specs := b.service.kubelet.metadata.specs; len(specs) > 0 {
		t.Errorf("remembered after a sweep: %v", specs)
	}
}
