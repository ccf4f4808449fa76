package driver

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/records"
)

// rank publishes the whole GPUs in another order if what is free asks for one. It does not look at the hardware.
func (s *service) rank(ctx context.Context, hw *hardware, p *publisher) {
	node, view := s.view(hw)
	if order := view.WholeGPUs(node); !slices.Equal(order, p.order) {
		klog.FromContext(ctx).V(4).Info("Whole GPUs change their order with what is free", "order", order)
		s.publish(ctx, hw, p)
	}
}

// freeGPUs tells of a GPU whether no claim holds anything of it. Claims with admin access hold nothing.
func freeGPUs(all []*records.Record) func(g *gpu.GPU) bool {
	held := map[string]bool{}
	for _, r := range all {
		for i := range r.Devices {
			if d := &r.Devices[i]; !d.AdminAccess {
				held[d.GPU] = true
			}
		}
	}
	return func(g *gpu.GPU) bool { return !held[g.PCI.DeviceName()] }
}
