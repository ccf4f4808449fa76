// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// files are what the driver leaves for the runtime, the containers and the API server.
type files struct{ *Driver }

func (d files) cdiIDs(claim *resourceapi.ResourceClaim, request string) []string {
	return []string{Name + "/device=" + deviceID(claim.UID, request)}
}

func deviceID(uid types.UID, request string) string {
	return string(uid) + "_" + strings.ReplaceAll(request, "/", "_")
}

func (d files) specFile(uid string) string { return filepath.Join(d.CDIDir(), Name+"-"+uid+".json") }

func (d files) metadataFile(uid types.UID, request string) string {
	return filepath.Join(d.metadataDir(), deviceID(uid, request)+".json")
}

// writeFiles writes the CDI spec of a claim and what it mounts.
func (d files) writeFiles(claim *resourceapi.ResourceClaim, devices []*drapb.Device) error {
	if d.is(WritesNoSpec) || !d.has(CDI) || d.is(LosesSpecs) && d.starts > 1 {
		return nil
	}
	spec := &specs.Spec{Kind: Name + "/device"}
	for _, r := range preparer(d).results(claim) {
		edits := specs.ContainerEdits{Env: []string{"DEVICE=" + r.Device}}
		if d.has(Metadata) {
			if err := d.writeMetadata(claim, r); err != nil {
				return err
			}
			base, _, _ := strings.Cut(r.Request, "/")
			at := path.Join(metadata.ContainerDir, metadata.ResourceClaimsSubDir, claim.Name, base, Name+metadata.MetadataFileSuffix)
			if d.is(MetadataElsewhere) {
				at += ".old"
			}
			edits.Mounts = []*specs.Mount{{HostPath: d.metadataFile(claim.UID, r.Request), ContainerPath: at, Options: []string{"ro", "bind"}}}
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: deviceID(claim.UID, r.Request), ContainerEdits: edits})
	}
	if len(spec.Devices) == 0 || len(devices) == 0 {
		return nil
	}
	var err error
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return fmt.Errorf("find the version of a CDI spec: %w", err)
	}
	return writeJSON(d.specFile(string(claim.UID)), spec)
}

func (d files) writeMetadata(claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) error {
	file := d.metadataFile(claim.UID, r.Request)
	if d.is(MetadataBroken) {
		return os.WriteFile(file, []byte("{"), 0o600)
	}
	data := metadatav1beta1.DeviceMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: metadatav1beta1.SchemeGroupVersion.String(), Kind: "DeviceMetadata"},
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		Requests: []metadatav1beta1.DeviceMetadataRequest{{
			Name: r.Request, Devices: []metadatav1beta1.Device{{Driver: r.Driver, Pool: r.Pool, Name: r.Device}},
		}},
	}
	if d.is(MetadataOther) {
		data.Name = "other"
	}
	if d.is(MetadataEmpty) {
		data.Requests[0].Devices = nil
	}
	return writeJSON(file, data)
}

func writeJSON(file string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	// A reader never sees half a file, nor do two writers meet.
	f, err := os.CreateTemp(filepath.Dir(file), "new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(f.Name(), file)
}

// removeFiles removes what was written for a claim.
func (d files) removeFiles(uid string) error {
	var failed []error
	if !d.is(LeavesSpec) {
		failed = append(failed, os.Remove(d.specFile(uid)))
	}
	if !d.is(MetadataStays) {
		files, err := filepath.Glob(filepath.Join(d.metadataDir(), uid+"_*.json"))
		failed = append(failed, err)
		for _, f := range files {
			failed = append(failed, os.Remove(f))
		}
	}
	for i, err := range failed {
		if errors.Is(err, os.ErrNotExist) {
			failed[i] = nil
		}
	}
	return errors.Join(failed...)
}

// writeStatus writes the status of a claim's devices.
func (d files) writeStatus(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	if !d.has(Status) {
		return nil
	}
	claim = claim.DeepCopy()
	claim.Status.Devices = nil
	for _, r := range preparer(d).results(claim) {
		one := resourceapi.AllocatedDeviceStatus{
			Driver: r.Driver, Pool: r.Pool, Device: r.Device, ShareID: (*string)(r.ShareID),
			Conditions: []metav1.Condition{{
				Type: "Ready", Status: metav1.ConditionTrue, Reason: "Prepared", LastTransitionTime: metav1.NewTime(time.Now()),
			}},
		}
		switch {
		case d.is(StatusOther):
			one.Device += "-other"
		case d.is(NotReady):
			one.Conditions[0].Status = metav1.ConditionFalse
		case d.is(ConditionIncomplete):
			one.Conditions[0].Reason = ""
		}
		claim.Status.Devices = append(claim.Status.Devices, one)
		if d.is(StatusPartial) {
			break
		}
	}
	if _, err := d.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write the status of the claim: %w", err)
	}
	return nil
}
