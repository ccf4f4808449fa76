// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
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

// Where the API server drops counters, a GPU is one device, and the node says why, and whoever asks for a part of one.
func TestCounting_Published(t *testing.T) {
	b := newBedOf(t, map[string]bool{"DRAPartitionableDevices": false}, "node-1")
	dir, err := os.MkdirTemp("/tmp", "n") // t.TempDir is too long for sockets
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	n, err := node.Create(t.Context(), node.Options{Cluster: b.control, Bin: bin(), Model: "hgx-h100", NodeName: "node-1", Dir: dir})
	must(t, err)
	must(t, n.Start(t.Context()))
	t.Cleanup(func() { must(t, n.Kill()) })
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	must(t, workload.Until(ctx, "whole GPUs alone to be published", func(ctx context.Context) (bool, string, error) {
		list, err := b.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		var names []string
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				names = append(names, d.Name)
			}
		}
		return len(names) == 8 && !strings.Contains(strings.Join(names, " "), "-mig-"), strings.Join(names, " "), err
	}))
	must(t, workload.Until(ctx, "an Event on the node", func(ctx context.Context) (bool, string, error) {
		list, err := b.kube.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "reason=TiersNotCounted,involvedObject.name=node-1"})
		return len(list.Items) == 1 && strings.Contains(list.Items[0].Message, "DRAPartitionableDevices"), n.LogTail(5), err
	}))
	path := filepath.Join(t.TempDir(), "pod.yaml")
	must(t, os.WriteFile(path, []byte(asks(request("mig-1g.10gb.cleave.dev"))), 0o600))
	command(t.Context(), "explain", "-f", path, "-n", namespace, "--kubeconfig", b.kubeconfig).want(t, "explain",
		bad("never fits the nodes of this cluster", "- GPUs are offered in one tier each, as the API server", "turn on the feature gate DRAPartitionableDevices"))
}
