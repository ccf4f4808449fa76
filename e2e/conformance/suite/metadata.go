// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

var metadataCases = []Case{
	{
		Name:   "metadata/files",
		Rule:   "A container gets a metadata file for each request of its claim, at the path that readers know, with the claim's devices.",
		Source: "k8s.io/dynamic-resource-allocation/api/metadata; KEP-5304",
		run:    metadataFiles,
	},
	{
		Name:   "metadata/removed",
		Rule:   "The metadata files of a claim are gone when it is unprepared.",
		Source: "kubeletplugin.DRAPlugin.UnprepareResourceClaims: \"must undo\"; KEP-5304",
		run:    metadataRemoved,
	},
}

// metadataMounts prepares a claim and returns its metadata files: where containers see them and where they are. None skips
// the case.
func (b *bench) metadataMounts(ctx context.Context) (*resourceapi.ResourceClaim, map[string]string, error) {
	if len(b.CDIDirs) == 0 {
		return nil, nil, skipf("the suite was given no directory of CDI specs")
	}
	claim, err := b.claim(ctx, "metadata")
	if err != nil {
		return nil, nil, err
	}
	devices, err := b.prepared(ctx, claim)
	if err != nil {
		return nil, nil, err
	}
	edits, err := b.driver.Edits(cdiIDs(devices))
	if err != nil {
		return nil, nil, err
	}
	files := map[string]string{}
	for _, e := range edits {
		for _, m := range e.Mounts {
			if strings.HasPrefix(m.ContainerPath, metadata.ContainerDir+"/") {
				files[m.ContainerPath] = m.HostPath
			}
		}
	}
	if len(files) == 0 {
		return nil, nil, skipf("no CDI device of the claim mounts a file below %s", metadata.ContainerDir)
	}
	return claim, files, nil
}

func metadataFiles(ctx context.Context, b *bench) (string, error) {
	claim, files, err := b.metadataMounts(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range b.resultsOf(claim) {
		base, _, _ := strings.Cut(r.Request, "/")
		at := path.Join(metadata.ContainerDir, metadata.ResourceClaimsSubDir, claim.Name, base, b.Driver+metadata.MetadataFileSuffix)
		file, ok := files[at]
		if !ok {
			return "", fmt.Errorf("nothing is mounted at %s", at)
		}
		if err := checkMetadata(file, claim, r); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d files", len(files)), nil
}

// checkMetadata reads a file as a program in the container would.
func checkMetadata(file string, claim *resourceapi.ResourceClaim, r resourceapi.DeviceRequestAllocationResult) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open the metadata: %w", err)
	}
	defer f.Close()
	var got metadata.DeviceMetadata
	var invalid error
	validate := devicemetadata.DecodeMetadataWithValidationResult(&invalid)
	if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(f), &got, validate); err != nil {
		return fmt.Errorf("decode %s: %w", file, err)
	}
	if invalid != nil {
		return fmt.Errorf("validate %s: %w", file, invalid)
	}
	if got.Namespace != claim.Namespace || got.Name != claim.Name || got.UID != claim.UID {
		return fmt.Errorf("%s is of claim %s/%s %s, want %s/%s %s", file, got.Namespace, got.Name, got.UID, claim.Namespace, claim.Name,
			claim.UID)
	}
	for _, request := range got.Requests {
		if request.Name == r.Request && slices.ContainsFunc(request.Devices, func(d metadata.Device) bool {
			return d.Driver == r.Driver && d.Pool == r.Pool && d.Name == r.Device
		}) {
			return nil
		}
	}
	return fmt.Errorf("%s lacks device %s of request %s", file, r.Device, r.Request)
}

func metadataRemoved(ctx context.Context, b *bench) (string, error) {
	claim, files, err := b.metadataMounts(ctx)
	if err != nil {
		return "", err
	}
	if err := b.unprepared(ctx, claim); err != nil {
		return "", err
	}
	for _, file := range slices.Sorted(maps.Values(files)) {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is left after the claim was unprepared", file)
		}
	}
	return fmt.Sprintf("%d files are gone", len(files)), nil
}
