// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Claims that a change of the MIG mode has overtaken are named on the node, and learn of it themselves.
func TestOvertaken(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	recorder.IncludeObject = true
	g := &gpu.GPU{UUID: "GPU-1", MIG: gpu.MIG{Enabled: true}}
	overtaken{cluster.NewEventsWith(recorder, "n")}.report(g, []records.Claim{
		{Namespace: "ns", Name: "a", UID: "1"}, {Namespace: "ns", Name: "b", UID: "2"},
	})
	var heard []string
	for len(recorder.Events) > 0 {
		heard = append(heard, <-recorder.Events)
	}
	if len(heard) != 3 {
		t.Fatalf("Events = %q, want one for each claim and one for the node", heard)
	}
	for i, kind := range []string{"ResourceClaim", "ResourceClaim", "Node"} {
		if !strings.HasPrefix(heard[i], "Warning ClaimOvertaken") || !strings.Contains(heard[i], "kind="+kind) ||
			!strings.Contains(heard[i], "has entered MIG mode") {
			t.Errorf("Event %d = %q, want one about a %s", i, heard[i], kind)
		}
	}
	if node := heard[2]; !strings.Contains(node, "ns/a") || !strings.Contains(node, "ns/b") {
		t.Errorf("Event of the node = %q, want the claims in it", node)
	}
}
