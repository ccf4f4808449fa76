// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/structured"

	kube "github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/tools/resourcepool"
)

// gatedBefore is the release whose scheduler has the feature gates of counters and shares on by default (kube_features.go of Kubernetes:
// DRAPartitionableDevices and DRAConsumableCapacity are beta, and on).
var gatedBefore = version.MustParseGeneric("1.36.0")

// schedulerOf is what the allocator of the cluster's scheduler can do, and notes on what the cluster does not count, and nodes therefore
// do not offer. The scheduler cannot be asked: its release is the API server's, and the gates of counters and shares are those that the
// API server is seen to have.
func schedulerOf(ctx context.Context, client kubernetes.Interface, driver string) (f structured.Features, notes []string) {
	f = resourcepool.Features()
	counted, err := kube.AskCounted(ctx, client, driver)
	if err != nil {
		return f, []string{fmt.Sprintf("Whether the cluster counts all tiers is not known: %v", err)}
	}
	for _, why := range []error{counted.Counters, counted.Shares, counted.SharesBeside} {
		if why != nil {
			notes = append(notes, strings.ToUpper(why.Error()[:1])+why.Error()[1:]+".")
		}
	}
	release := releaseOf(client)
	if release == nil {
		return f, notes
	}
	f = resourcepool.FeaturesOf(release)
	f.PartitionableDevices, f.ConsumableCapacity = counted.Counters == nil, counted.Shares == nil
	f.FractionalCapacityRange = f.FractionalCapacityRange && f.ConsumableCapacity
	if counted.Counters == nil && !release.AtLeast(gatedBefore) {
		notes = append(notes, fmt.Sprintf("The scheduler of Kubernetes %s ignores partitions, shares, and GPUs that are offered as these, "+
			"unless the feature gates DRAPartitionableDevices and DRAConsumableCapacity are on there as in the API server: else what fits "+
			"here waits.", release))
	}
	return f, notes
}

// notCounted lists what a cluster does not count, and nodes therefore do not offer.
func notCounted(ctx context.Context, client kubernetes.Interface, driver string) []string {
	_, notes := schedulerOf(ctx, client, driver)
	return notes
}

// releaseOf is the API server's release; nil where it is not known, of which AskCounted has said more.
func releaseOf(client kubernetes.Interface) *version.Version {
	info, err := client.Discovery().ServerVersion()
	if err != nil {
		return nil
	}
	release, err := version.ParseGeneric(info.GitVersion)
	if err != nil {
		return nil
	}
	return release
}
