// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// changingGPUs is an inventory that changes as a test says.
type changingGPUs struct {
	sync.Mutex
	node           gpu.Node
	missing        []gpu.PCIAddress
	changed        bool
	err            error
	looks, rereads int
}

func (c *changingGPUs) Node() *gpu.Node {
	c.Lock()
	defer c.Unlock()
	node := c.node
	return &node
}

func (c *changingGPUs) Rediscover(context.Context, func(gpu.PCIAddress) bool) (bool, error) {
	c.Lock()
	defer c.Unlock()
	c.looks++
	return c.changed, c.err
}

func (c *changingGPUs) Missing() []gpu.PCIAddress {
	c.Lock()
	defer c.Unlock()
	return c.missing
}

func (c *changingGPUs) RereadLinks(context.Context) bool {
	c.Lock()
	defer c.Unlock()
	c.rereads++
	return false
}

func TestFinder_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := 0
		f, c := newFinder(func() { found++ }, newMetrics().healthy), &changingGPUs{err: errors.New("no driver")}
		stop := background(t.Context(), func(ctx context.Context) { f.run(ctx, c, func(gpu.PCIAddress) bool { return false }) })
		settle := func(d time.Duration) {
			c.Unlock()
			<-time.After(d)
			synctest.Wait()
			c.Lock()
		}
		c.Lock()
		settle(25 * time.Second)
		if c.looks != 2 || c.rereads != 0 || found != 0 {
			t.Errorf("after 25 s: %d looks, %d reads of links, found %d; want 2, 0, 0", c.looks, c.rereads, found)
		}
		c.changed, c.err = true, nil
		signal(f.now)
		settle(0)
		if c.looks != 3 || found != 1 {
			t.Errorf("asked to look at once: %d looks, found %d; want 3, 1", c.looks, found)
		}
		signal(f.links)
		settle(10 * time.Second)
		if c.rereads != 1 {
			t.Errorf("links were read %d times, want once", c.rereads)
		}
		c.node.GPUs = []gpu.GPU{{FabricState: gpu.FabricInProgress}}
		settle(20 * time.Second)
		if c.rereads != 3 {
			t.Errorf("while a registration is pending links were read %d times, want with each look", c.rereads-1)
		}
		c.Unlock()
		stop()
	})
}

// A GPU that was lost before the plugin's start is in no inventory, so that nobody polls it.
func TestFinder_MissingGPUIsUnhealthy(t *testing.T) {
	lost, read := gpu.PCIAddress{Bus: 0x18}, gpu.PCIAddress{Bus: 0x19}
	all := func(value string, pcis ...gpu.PCIAddress) (want []string) {
		for _, pci := range pcis {
			want = append(want, "cleave_gpu_healthy{gpu="+pci.DeviceName()+"} "+value)
		}
		return want
	}
	m, c := newMetrics(), &changingGPUs{}
	f := newFinder(func() {}, m.healthy)
	for _, step := range []struct {
		what          string
		missing, node []gpu.PCIAddress
		want          []string
	}{
		{"at start", []gpu.PCIAddress{lost, read}, nil, all("0", lost, read)},
		{"as before", []gpu.PCIAddress{lost, read}, nil, all("0", lost, read)},
		{"one is read, and not polled yet", []gpu.PCIAddress{lost}, []gpu.PCIAddress{read}, all("0", lost, read)},
		{"the other was taken out", nil, []gpu.PCIAddress{read}, all("0", read)},
	} {
		c.missing, c.node.GPUs = step.missing, nil
		for _, pci := range step.node {
			c.node.GPUs = append(c.node.GPUs, gpu.GPU{PCI: pci})
		}
		f.noteMissing(c)
		if diff := cmp.Diff(step.want, series(t, m.healthy)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}

func TestIsAllocated(t *testing.T) {
	pci := gpu.PCIAddress{Bus: 0x18}
	all := []*records.Record{{Devices: []records.Device{{GPU: pci.DeviceName()}}}}
	if !isAllocated(all, pci) || isAllocated(all, gpu.PCIAddress{Bus: 0x19}) || isAllocated(nil, pci) {
		t.Error("want the GPU of the record allocated, and no other")
	}
}
