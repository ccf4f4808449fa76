// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// holdings are what a node has for claims.
func (p place) holdings(ctx context.Context) (map[string][]string, error) {
	return env.release.Holdings(ctx, p.index)
}

// everyKind are those that pods of all tiers have.
var everyKind = []string{"records", "CDI specs", "partitions", "compute modes", "MPS processes"}

// slices are those that the plugin of a node publishes, and whether that is all of them.
func (p place) slices(ctx context.Context) (list []resourceapi.ResourceSlice, complete bool, err error) {
	all, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + workload.Driver + "," + resourceapi.ResourceSliceSelectorNodeName + "=" + p.Name(),
	})
	if err != nil || len(all.Items) == 0 {
		return nil, false, err
	}
	return all.Items, int64(len(all.Items)) == all.Items[0].Spec.Pool.ResourceSliceCount, nil
}

// waitSlices waits until a node's pool is complete and no device of it is tainted, and returns the UUIDs of its GPUs.
func (p place) waitSlices(t *testing.T, ctx context.Context) (uuids []string) {
	t.Helper()
	must(t, workload.Until(ctx, "the slices of node "+p.Name(), func(ctx context.Context) (bool, string, error) {
		list, complete, err := p.slices(ctx)
		uuids = nil
		tainted := 0
		for i := range list {
			for _, d := range list[i].Spec.Devices {
				tainted += len(d.Taints)
				if kind := d.Attributes["type"].StringValue; kind != nil && *kind == "gpu" {
					uuids = append(uuids, *d.Attributes["uuid"].StringValue)
				}
			}
		}
		return complete && tainted == 0 && len(uuids) == 8, fmt.Sprintf("%d slices, %d GPUs, %d taints", len(list), len(uuids), tainted), err
	}))
	slices.Sort(uuids)
	return uuids
}

// allocated are the devices of claims, by pool, with their claims' names. It fails if a device that is not shared has two.
func allocated(t *testing.T, ctx context.Context) map[string][]string {
	t.Helper()
	claims, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
	must(t, err)
	pools, owners := map[string][]string{}, map[string]string{}
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			device := r.Pool + "/" + r.Device
			if owner := owners[device]; owner != "" && r.ShareID == nil {
				t.Errorf("%s is allocated to %s and to %s", device, owner, c.Name)
			}
			owners[device] = c.Name
			pools[r.Pool] = append(pools[r.Pool], r.Device)
		}
	}
	return pools
}

// entries lists a directory of the node, if it is there.
func (p place) entries(t *testing.T, path string) []string {
	t.Helper()
	found, err := os.ReadDir(p.HostPath(path))
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	var names []string
	for _, e := range found {
		names = append(names, e.Name())
	}
	return names
}
