// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// A spec that is deleted is missed at once, and not at the next reconcile.
func TestClaimSpecs(t *testing.T) {
	dir := t.TempDir()
	spec, missed := filepath.Join(dir, "gpu.cleave.dev-claim_1.json"), make(chan struct{}, 100)
	recorder := record.NewFakeRecorder(1)
	var lacking atomic.Int64
	s := &claimSpecs{
		dir: dir, events: cluster.NewEventsWith(recorder, "node-1"),
		lack: func() bool {
			lacking.Add(1)
			_, err := os.Stat(spec)
			return err != nil
		},
		mark: func() { missed <- struct{}{} },
	}
	stop := background(t.Context(), s.watch)
	for before := lacking.Load(); lacking.Load() == before; { // until the directory is watched
		write(t, spec, "")
		<-time.After(specsSettle / 2)
	}
	for len(missed) > 0 {
		<-missed
	}
	if err := os.Remove(spec); err != nil {
		t.Fatal(err)
	}
	<-missed
	stop()
	s.restored(t.Context(), records.Claim{Namespace: "ns", Name: "c"})
	if event := <-recorder.Events; !strings.Contains(event, reasonSpecRestored) || !strings.Contains(event, dir) {
		t.Errorf("got Event %q", event)
	}
}
