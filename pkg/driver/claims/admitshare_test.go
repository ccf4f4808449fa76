// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

func TestShares_IntervalOfPolicy(t *testing.T) {
	tests := map[string]struct {
		policy string
		before string // interval of a claim that has a share already; "none" if it asks for none, empty for no such claim
		claim  string // interval that the claim asks for
		want   string // interval of the GPU after it; empty for the driver's
		err    bool
	}{
		"nothing said":                {"", "", "", "", false},
		"by policy":                   {"Long", "", "", "Long", false},
		"the driver's by policy":      {"Default", "", "", "", false},
		"another is asked for":        {"Long", "", "Short", "Short", false},
		"another was asked for":       {"Long", "Short", "", "Short", false},
		"the same was asked for":      {"Long", "Long", "", "Long", false},
		"none was asked for":          {"Long", "none", "", "Long", false},
		"none was, the same is":       {"Long", "none", "Long", "Long", false},
		"none was, another is":        {"Long", "none", "Short", "Long", true},
		"no policy, another was":      {"", "Short", "", "Short", false},
		"no policy, two that exclude": {"", "Short", "Long", "Short", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.hardware.node.Offers[0].TimeSlice.Interval = tt.policy
			if tt.before == "none" {
				b.prepare("before", sliceOf(0, 10))
			} else if tt.before != "" {
				b.prepare("before", sliceOf(0, 10).at(tt.before))
			}
			if err := b.tryPrepare("claim", sliceOf(0, 10).at(tt.claim)); (err != nil) != tt.err {
				t.Errorf("got error %v, want one: %t", err, tt.err)
			} else if err != nil {
				wantError(t, err, "ns/claim-before (before)", "or the node's policy")
			}
			if got := b.sharing.interval(gpuName(0)); got != tt.want {
				t.Errorf("got interval %q, want %q", got, tt.want)
			}
			b.unprepare("claim")
			b.unprepare("before")
			b.want()
		})
	}
}

func TestShares_IntervalOfOneOfTwo(t *testing.T) {
	b := newBed(t)
	b.hardware.node.Offers[0].TimeSlice.Interval = "Long"
	b.prepare("a", sliceOf(0, 10).of("x"), sliceOf(0, 10).at("Short").of("y"))
	b.want("record a", "spec a", "interval 0 Short")
}

func TestShares_PriorityOfPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy, wish string
		below        bool
	}{
		{"", "", false}, {"BelowNormal", "", true}, {"Normal", "", false},
		{"BelowNormal", `"priority":"Normal"`, false}, {"Normal", `"priority":"BelowNormal"`, true}, {"BelowNormal", `"activeThreadPercentage":5`, true},
	} {
		node := sharedNode()
		node.Offers[0].MPS.Priority = tt.policy
		claim := withConfigs(claimFor("u", mpsOf(0, 10, 8)), opaque(testDriver, resourceapi.AllocationConfigSourceClaim, shareConfig(`"mps":{`+tt.wish+`}`)))
		if tt.wish == "" {
			claim = claimFor("u", mpsOf(0, 10, 8))
		}
		got, err := plan(claim, node, testID)
		must(t, err)
		if got[0].share.MPS.BelowNormal != tt.below {
			t.Errorf("policy %q, claim %q: below normal %t, want %t", tt.policy, tt.wish, got[0].share.MPS.BelowNormal, tt.below)
		}
	}
}

// A kubelet that starts again prepares the claims of running pods again: a policy that has changed meanwhile must not take
// their shares from them.
func TestShares_PolicyChanged(t *testing.T) {
	b := newBed(t)
	parts := []part{sliceOf(0, 10), mpsOf(1, 10, 8), sliceOf(2, 10).at("Short").of("other")}
	first := b.prepare("a", parts...)
	b.sharing.took()
	for i := range b.hardware.node.GPUs {
		o := &b.hardware.node.Offers[i]
		o.TimeSlice.Interval, o.TimeSlice.Enforcement = "Long", policy.EnforcedPerCgroup
		o.MPS.Priority, o.MPS.Shares = "BelowNormal", 49
	}
	equal(t, "devices", first, b.prepare("a", parts...))
	b.wantCalls("StartMPS " + gpuName(1) + " a") // which can be repeated
	b.want("record a", "spec a", "mps 1 a", "interval 2 Short")
	b.unprepare("a")

	after := b.prepare("b", parts...) // a new claim has what it says now
	if after[0].Share.Interval != "Long" || !after[0].Share.CgroupMemory || !after[1].Share.MPS.BelowNormal || !after[1].Share.MPS.ManyClients || after[2].Share.Interval != "Short" {
		t.Errorf("a new claim got %+v, %+v, %+v", after[0].Share, after[1].Share, after[2].Share)
	}
	b = b.restart()
	for i := range b.hardware.node.GPUs {
		b.hardware.node.Offers[i].TimeSlice.Interval = ""
	}
	b.sharing.took()
	equal(t, "devices after a restart and with another policy", after, b.prepare("b", parts...))
	b.wantCalls("StartMPS " + gpuName(1) + " b")
}
