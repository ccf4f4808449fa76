// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// sharesSince is the first release of Kubernetes whose scheduler counts shares of a GPU together with its partitions.
// Before, DRAConsumableCapacity and DRAPartitionableDevices are both alpha, and a GPU could be allocated as shares and as
// partitions at once.
var sharesSince = version.MustParseGeneric("1.36.0")

// SharesUnsupported waits for the API server and returns why its release cannot have shared GPUs; nil if it can.
func SharesUnsupported(ctx context.Context, api rest.Interface, retry time.Duration) (why error, err error) {
	tick := time.NewTicker(retry)
	defer tick.Stop()
	for reported := false; ; reported = true {
		release, err := serverRelease(ctx, api)
		if err == nil {
			return noShares(release), nil
		}
		if !reported {
			klog.FromContext(ctx).Error(err, "Waiting for the API server", "retryEvery", retry)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the API server: %w (last attempt: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// noShares returns why a release cannot have shared GPUs; nil if it can.
func noShares(release *version.Version) error {
	if release.AtLeast(sharesSince) {
		return nil
	}
	return fmt.Errorf("GPUs are not shared on Kubernetes %s: its scheduler could allocate a GPU as shares and as partitions at once; "+
		"use %d.%d or later", release, sharesSince.Major(), sharesSince.Minor())
}

// serverRelease asks the API server which release it is.
func serverRelease(ctx context.Context, api rest.Interface) (*version.Version, error) {
	data, err := api.Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its release: %w", err)
	}
	var info apiversion.Info
	if err := json.Unmarshal(data, &info); err != nil {
		return nil, fmt.Errorf("read the release of the API server: %w", err)
	}
	release, err := version.ParseGeneric(info.GitVersion) // vendors append to it: v1.35.2-eks-1
	if err != nil {
		return nil, fmt.Errorf("read the release of the API server: %w", err)
	}
	return release, nil
}
