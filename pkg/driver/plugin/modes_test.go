// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Claims that a change of the MIG mode has overtaken are named on the node, and learn of it themselves.
func TestOvertaken(t *testing.T) {
	recorder := &objectRecorder{}
	g := &gpu.GPU{UUID: "GPU-1"} // as it was
	overtaken{cluster.NewEventsWith(recorder, "n")}.report(g, true, []records.Claim{
		{Namespace: "ns", Name: "a", UID: "1"}, {Namespace: "ns", Name: "b", UID: "2"},
	})
	subjects, messages := recorder.typed()
	want := []string{"Warning ResourceClaim ns/a 1 ClaimOvertaken", "Warning ResourceClaim ns/b 2 ClaimOvertaken", "Warning Node /n n ClaimOvertaken"}
	if diff := cmp.Diff(want, subjects); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	named := false
	for message := range messages {
		named = named || strings.Contains(message, "ns/a") && strings.Contains(message, "ns/b")
		if !strings.Contains(message, "has entered MIG mode") {
			t.Errorf("an Event says %q", message)
		}
	}
	if !named {
		t.Errorf("no Event names both claims: %v", messages)
	}
}
