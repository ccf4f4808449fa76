// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// closeLayouts records the witnesses that can later prove that the partitions of layouts are unchanged. Without one a partition becomes
// unmanaged, which is safe: a GPU that has failed does not keep the driver from being released.
func closeLayouts(ctx context.Context, l *Ledger, hw Hardware) {
	devices, err := l.layouts.gpus()
	if err != nil {
		klog.FromContext(ctx).Error(err, "The partitions of layouts will be unmanaged: their layouts cannot be listed")
	}
	for _, device := range devices {
		if err := closeLayout(ctx, l, hw, device); err != nil {
			klog.FromContext(ctx).Error(err, "The partitions of a GPU's layout will be unmanaged", "gpu", device)
		}
	}
}

func closeLayout(ctx context.Context, l *Ledger, hw Hardware, device string) error {
	held, err := l.lockFor(ctx, "", []string{device})
	if err != nil {
		return err
	}
	defer held.Release()
	have, g := l.layout(device), hw.Node().Find(device)
	if have == nil || g == nil || have.UUID != g.UUID {
		return nil
	}
	all, err := hw.Partitions(ctx, g)
	if err != nil {
		return err
	}
	closed := *have
	closed.Witnesses = slices.DeleteFunc(l.sessions.witnesses(g, all), func(w records.LayoutWitness) bool { return !have.Has(w.Place) })
	return l.layouts.write(&closed)
}

// renewLayout records the current session for the partitions of a GPU's layout that provably still exist after the driver was released;
// all are those of the GPU. The others are unmanaged from then on. The caller holds the GPU's lock.
func renewLayout(l *Ledger, g *gpu.GPU, all []gpu.Partition) error {
	have := l.layouts.get(g.PCI.DeviceName())
	if have == nil || have.UUID != g.UUID || len(have.Witnesses) == 0 || l.sessions.current(have.GPU, have.Session) {
		return nil
	}
	renewed := *have
	renewed.Session, renewed.Places, renewed.Witnesses = l.sessions.of(have.GPU), nil, nil
	for _, w := range l.sessions.witnesses(g, all) {
		if slices.Contains(have.Witnesses, w) {
			renewed.Places = append(renewed.Places, w.Place)
		}
	}
	renewed.Places = sortedPlaces(renewed.Places)
	return explainWrite(l.store.Dir(), l.layouts.write(&renewed))
}

// witnesses are those of a GPU's partitions now.
func (s sessions) witnesses(g *gpu.GPU, all []gpu.Partition) (found []records.LayoutWitness) {
	for _, part := range all {
		if w := s.Witness(g.Minor, part.GI); w != "" {
			found = append(found, records.LayoutWitness{Place: part.Place(), Witness: w})
		}
	}
	return found
}
