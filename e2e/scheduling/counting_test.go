// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/pkg/cluster"
)

// What an API server counts is what it keeps of a slice that it is asked about; the slice is not stored.
func TestCounting(t *testing.T) {
	for name, test := range map[string]struct {
		gates            map[string]bool
		shares, counters string // part of the reason; empty for none
	}{
		"by default":  {},
		"no counters": {gates: map[string]bool{"DRAPartitionableDevices": false}, counters: "drops counters"},
		"no shares":   {gates: map[string]bool{"DRAConsumableCapacity": false}, shares: "drops what shares need"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBedOf(t, test.gates)
			c := cluster.NewCounting(b.kube, "gpu.cleave.dev", "node-1")
			must(t, c.Wait(t.Context(), time.Second))
			for _, of := range []struct {
				what string
				got  error
				want string
			}{{"shares", c.Counted().Shares, test.shares}, {"counters", c.Counted().Counters, test.counters}} {
				if (of.got == nil) != (of.want == "") || of.got != nil && !strings.Contains(of.got.Error(), of.want) {
					t.Errorf("%s: got %v, want %q in it", of.what, of.got, of.want)
				}
			}
			list, err := b.kube.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) > 0 {
				t.Errorf("%d slices, %v; want none", len(list.Items), err)
			}
		})
	}
}
