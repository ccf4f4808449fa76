// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/pkg/domain/counting"
	kube "github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/tools/allocator"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// askScheduler sets what the allocator of the cluster's scheduler can do, and what the cluster does not count, or says why that is not
// known. The scheduler cannot be asked: its release is the API server's, and the gates of counters and shares are those that the API
// server is seen to have.
func askScheduler(ctx context.Context, client kubernetes.Interface, o *explain.Objects) (unknown string) {
	o.Features = allocator.Features()
	counted, err := kube.AskCounted(ctx, client, o.Driver)
	if err != nil {
		return fmt.Sprintf("Whether the cluster counts all tiers is not known: %v", err)
	}
	o.Counted = counted
	if o.Release = releaseOf(client); o.Release == nil {
		return ""
	}
	f := allocator.FeaturesOf(o.Release)
	f.PartitionableDevices, f.ConsumableCapacity = counted.Counters == nil, counted.Shares == nil
	f.FractionalCapacityRange = f.FractionalCapacityRange && f.ConsumableCapacity
	o.Features = f
	return ""
}

// notCounted lists what a cluster does not count, and nodes therefore do not offer, or its scheduler ignores.
func notCounted(ctx context.Context, client kubernetes.Interface, driver string) (all []string) {
	o := explain.Objects{Driver: driver}
	if unknown := askScheduler(ctx, client, &o); unknown != "" {
		return []string{unknown}
	}
	for _, why := range o.Counted.Reasons() {
		all = append(all, counting.Sentence(why))
	}
	if o.Release != nil && o.Counted.Counters == nil && !counting.ByDefault(o.Release) {
		all = append(all, "The scheduler of "+counting.Ignored(o.Release)+".")
	}
	return all
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
