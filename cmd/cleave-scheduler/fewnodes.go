// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"

	"k8s.io/kube-scheduler/framework"

	"github.com/cleave-dra/cleave/pkg/scheduler/gpupacking"
)

// fewNodes bounds the nodes that are tried.
type fewNodes struct {
	framework.NodeToStatusReader
	shared *gpupacking.Shared
	state  framework.CycleState
}

// NodesForStatusCode are some of those with a status: first those of which GPUPacking knows the victims, then those that have devices.
func (f fewNodes) NodesForStatusCode(nodes framework.NodeInfoLister, code framework.Code) ([]framework.NodeInfo, error) {
	all, err := f.NodeToStatusReader.NodesForStatusCode(nodes, code)
	if compared := gpupacking.Compared(f.state); compared != nil {
		all = slices.DeleteFunc(slices.Clone(all), func(n framework.NodeInfo) bool { return !compared.Has(n.Node().Name) })
	}
	if err != nil || len(all) <= gpupacking.MostTried {
		return all, err
	}
	at := rand.IntN(len(all)) //nolint:gosec // any will do; not always the same, as there may be others that would do
	var known, with, without []framework.NodeInfo
	for _, node := range slices.Concat(all[at:], all[:at]) {
		if _, ok := gpupacking.Victims(f.state, node.Node().Name); ok {
			known = append(known, node)
		} else if f.shared.HasDevices(node.Node().Name) {
			with = append(with, node)
		} else {
			without = append(without, node)
		}
	}
	return slices.Concat(known, with, without)[:gpupacking.MostTried], nil
}
