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

// reasonSpecRestored is the reason of Events about CDI specs of claims that something else has deleted.
const reasonSpecRestored = "CDISpecRestored"

// specsSettle is how long after a change of the CDI directory specs are missed: the plugin itself removes that of a claim that ends
// before its record.
const specsSettle = time.Second

// claimSpecs has the CDI specs of claims written again that something else deletes, such as a script that cleans up: without its
// spec a container of the claim cannot restart ("unresolvable CDI devices").
type claimSpecs struct {
	dir    string
	events *cluster.Events
	// lack reports whether a spec is missing, and mark has it written.
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
		klog.FromContext(ctx).Error(err, "Watching the CDI specs failed: those that are deleted are written at the next reconcile")
	}
}

// restored reports a spec that was written again.
func (s *claimSpecs) restored(ctx context.Context, claim records.Claim) {
	klog.FromContext(ctx).Info("The CDI spec of a claim was missing, and is written again", "claim", claim, "directory", s.dir)
	s.events.Warn(reasonSpecRestored, "The CDI spec of claim "+claim.String()+" was missing, and is written again: if that happens again, "+
		"find what deletes files in "+s.dir)
}
