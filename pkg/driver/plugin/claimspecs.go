// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/filewatch"
)

// The reason of Events about CDI specs of claims that were deleted by something else.
const reasonSpecRestored = "CDISpecRestored" // the CDI spec of a claim was missing, and was written again

// specsSettle is the delay between a change of the CDI directory and the check for missing specs: the plugin itself removes the spec
// of an ended claim before its record.
const specsSettle = time.Second

// claimSpecs restores CDI specs of claims that something else deletes, such as a cleanup script, with their device metadata: without its
// specs a container of the claim cannot restart ("unresolvable CDI devices").
type claimSpecs struct {
	dir    string
	events *cluster.Events
	// lack reports whether a spec is missing, and mark requests that it be written.
	lack func() bool
	mark func()
}

// watch watches the directory until ctx ends.
func (s *claimSpecs) watch(ctx context.Context) {
	err := filewatch.Watch(ctx, s.dir, func() {
		select {
		case <-ctx.Done():
		case <-time.After(specsSettle):
			if s.lack() {
				s.mark()
			}
		}
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Watching the CDI specs failed; deleted ones will be restored at the next reconcile")
	}
}

// restored reports a restored spec.
func (s *claimSpecs) restored(ctx context.Context, claim records.Claim) {
	klog.FromContext(ctx).Info("The CDI spec or device metadata of a claim was missing; it was written again",
		"claim", claim, "directory", s.dir)
	s.events.Warn(reasonSpecRestored, "The CDI spec or device metadata of claim "+claim.String()+" was missing; it was written again. "+
		"It may not have been written when the claim was prepared. If this recurs, find out which program deletes files in "+s.dir)
}
