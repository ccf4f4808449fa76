// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestState_Fabric(t *testing.T) {
	begin := time.Now()
	whole := gpu.Shape{GPU: &gpu.GPU{}}
	part := gpu.Shape{GPU: &gpu.GPU{}, Profile: &gpu.Profile{}, Placement: gpu.Placement{Size: 1}}
	tests := map[string]struct {
		states []gpu.FabricState // one a minute
		want   string
	}{
		"none":                            {[]gpu.FabricState{gpu.FabricUnsupported}, ""},
		"completed":                       {[]gpu.FabricState{gpu.FabricCompleted}, ""},
		"not started":                     {[]gpu.FabricState{gpu.FabricNotStarted, 1, 1, 1, 1}, ReasonFabric},
		"never started":                   {[]gpu.FabricState{gpu.FabricNotStarted, 1, 1, 1, 1, 1, 1, 1}, ReasonFabric},
		"no Fabric Manager":               {[]gpu.FabricState{gpu.FabricUnsupported, gpu.FabricUnmanaged}, ReasonFabric},
		"Fabric Manager is back":          {[]gpu.FabricState{gpu.FabricUnmanaged, gpu.FabricUnsupported}, ""},
		"failed":                          {[]gpu.FabricState{gpu.FabricInProgress, gpu.FabricFailed}, ReasonFabricFailed},
		"failed, then completed":          {[]gpu.FabricState{gpu.FabricFailed, gpu.FabricCompleted}, ""},
		"in progress, however long":       {[]gpu.FabricState{gpu.FabricInProgress, 2, 2, 2, 2, 2, 2}, ReasonFabric},
		"in progress, then completed":     {[]gpu.FabricState{gpu.FabricInProgress, gpu.FabricCompleted}, ""},
		"completed, then suspended again": {[]gpu.FabricState{gpu.FabricCompleted, gpu.FabricNotStarted}, ReasonFabric},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewState()
			for i, state := range test.states {
				s.Poll(Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryNone}, Fabric: state}, nil, begin.Add(time.Duration(i)*time.Minute))
			}
			got := ""
			for _, c := range s.Conditions() {
				got += c.Reason
				if last := test.states[len(test.states)-1]; c.SparesRunning != (last == gpu.FabricUnmanaged) {
					t.Errorf("%s spares running programs: %t, of state %s", c, c.SparesRunning, last)
				}
				if !c.Covers(whole) || c.Covers(part) {
					t.Errorf("%s covers the whole GPU: %t, want true; a partition: %t, want false", c, c.Covers(whole), c.Covers(part))
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestState_Confidential(t *testing.T) {
	begin := time.Now()
	part := gpu.Shape{GPU: &gpu.GPU{}, Profile: &gpu.Profile{}, Placement: gpu.Placement{Size: 1}}
	s := NewState()
	for i, step := range []struct {
		refuses bool
		want    int
	}{{false, 0}, {true, 1}, {true, 1}, {false, 0}} {
		s.Poll(Reading{Recovery: gpu.Recovery{Action: gpu.RecoveryNone}, Refuses: step.refuses}, nil, begin.Add(time.Duration(i)*time.Minute))
		conditions := s.Conditions()
		if len(conditions) != step.want {
			t.Fatalf("poll %d, which refuses work: %t: got %v, want %d conditions", i, step.refuses, conditions, step.want)
		}
		if step.refuses && (conditions[0].Reason != ReasonRefusing || !conditions[0].Covers(part)) {
			t.Errorf("got %v, covering partitions: %t; want %s, which covers them", conditions[0], conditions[0].Covers(part), ReasonRefusing)
		}
	}
}
