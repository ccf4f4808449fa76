// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// layouts are the partitions that Cleave has created ahead of claims, by the device name of their GPU. The entry of a GPU
// is valid only while its lock is held.
type layouts struct {
	store *records.LayoutStore // nil if no layouts are kept
	mu    sync.Mutex
	byGPU map[string]*records.Layout
	// latest are the layouts on record, of any boot.
	latest map[string]*records.Layout
	// unread are the GPUs whose layout could not be read, unsaved those whose layout in memory could not be written, or is that of a copy.
	unread, unsaved map[string]bool
}

// offered returns the places in which a GPU's layout was last offered.
func (l *layouts) offered(g *gpu.GPU) []gpu.Place {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := l.latest[g.PCI.DeviceName()]
	switch {
	case latest == nil || latest.UUID != g.UUID:
		return nil
	case latest.Offered == nil: // written by a release without Offered
		return latest.Places
	default:
		return latest.Offered
	}
}

// get returns the layout of a GPU, or nil; it must not be changed.
func (l *layouts) get(gpuDevice string) *records.Layout {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byGPU[gpuDevice]
}

// put enters a layout, or removes it if it is nil.
func (l *layouts) put(gpuDevice string, layout *records.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	setOrDelete(&l.byGPU, gpuDevice, layout)
}

// putLatest enters the layout on record, of any boot, or removes it if it is nil.
func (l *layouts) putLatest(gpuDevice string, layout *records.Layout) {
	l.mu.Lock()
	defer l.mu.Unlock()
	setOrDelete(&l.latest, gpuDevice, layout)
}

func setOrDelete(in *map[string]*records.Layout, gpuDevice string, layout *records.Layout) {
	if layout == nil {
		delete(*in, gpuDevice)
		return
	}
	if *in == nil {
		*in = map[string]*records.Layout{}
	}
	(*in)[gpuDevice] = layout
}

// write makes a layout durable unless it is unchanged; an empty one is removed. The caller holds the GPU's lock.
func (l *layouts) write(layout *records.Layout) error {
	have, empty := l.get(layout.GPU), len(layout.Places)+len(layout.Offered) == 0
	if err := l.writeChanged(layout, have, empty); err != nil {
		l.forget(have, layout.Places)
		return err
	}
	l.note(&l.unsaved, layout.GPU, false)
	return nil
}

// forget notes, for this process, which places of a layout it has left although that could not be written: what is created in the others
// from now on is not of the layout.
func (l *layouts) forget(have *records.Layout, left []gpu.Place) {
	if have == nil {
		return
	}
	now := *have
	now.Places = slices.DeleteFunc(slices.Clone(have.Places), func(at gpu.Place) bool { return !slices.Contains(left, at) })
	l.put(have.GPU, &now)
	l.note(&l.unsaved, have.GPU, true)
}

// note notes whether something holds of a GPU.
func (l *layouts) note(in *map[string]bool, gpuDevice string, holds bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !holds {
		delete(*in, gpuDevice)
		return
	}
	if *in == nil {
		*in = map[string]bool{}
	}
	(*in)[gpuDevice] = true
}

// isUnread reports whether the layout of a GPU could not be read.
func (l *layouts) isUnread(gpuDevice string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unread[gpuDevice]
}

// isUnsaved reports whether the layout in memory could not be written, or is that of a copy.
func (l *layouts) isUnsaved(gpuDevice string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsaved[gpuDevice]
}

// writeChanged implements write.
func (l *layouts) writeChanged(layout, have *records.Layout, empty bool) error {
	if l.isUnsaved(layout.GPU) {
		have = &records.Layout{}
	}
	if have != nil && have.UUID == layout.UUID && have.Session == layout.Session && slices.Equal(have.Places, layout.Places) &&
		slices.Equal(have.Offered, layout.Offered) && slices.Equal(have.Witnesses, layout.Witnesses) || have == nil && empty {
		return nil
	}
	if empty {
		return l.remove(layout.GPU)
	}
	if err := l.store.Write(layout); err != nil {
		return err
	}
	l.put(layout.GPU, layout)
	l.putLatest(layout.GPU, layout)
	return nil
}

// remove removes the layout of a GPU; the caller holds its lock.
func (l *layouts) remove(gpuDevice string) error {
	if err := l.store.Remove(gpuDevice); err != nil {
		return err
	}
	l.put(gpuDevice, nil)
	l.putLatest(gpuDevice, nil)
	return nil
}

// gpus lists the GPUs that have a layout on disk.
func (l *layouts) gpus() ([]string, error) {
	if l.store == nil {
		return nil, nil
	}
	return l.store.Names()
}

// load reads all layouts and sets corrupt ones aside. Their partitions become unmanaged: they are allocated where the
// policy has a place for them, and never destroyed.
func (l *layouts) load(ctx context.Context, bootID string, notify Notify) {
	devices, err := l.gpus()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not read the layouts of GPUs")
	}
	l.followCopies(ctx, notify)
	l.reload(ctx, bootID, devices)
	for _, device := range devices {
		corrupt := (*store.CorruptError)(nil)
		if _, err := l.store.Read(device); !errors.As(err, &corrupt) {
			continue
		}
		aside, err := l.store.SetAside(device)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not set aside a corrupt layout")
			continue
		}
		if notify != nil {
			notify("CorruptLayout", fmt.Sprintf("The layout of %s could not be read and was moved to %s: %v. "+
				"Its partitions are unmanaged from now on: Cleave will not destroy them.", device, aside, corrupt.Err))
		}
	}
}

// followCopies reports a layout whose copy is in use, once until it is written again, which is at its next write even if it is unchanged.
func (l *layouts) followCopies(ctx context.Context, notify Notify) {
	if l.store == nil {
		return
	}
	l.store.OnCopy(func(device string, cause error) {
		if l.isUnsaved(device) {
			return
		}
		l.note(&l.unsaved, device, true)
		klog.FromContext(ctx).Error(cause, "The layout of a GPU is corrupt; using its copy", "gpu", device)
		if notify != nil {
			notify("CorruptLayout", fmt.Sprintf("The layout of %s could not be read; its copy is used: %v. Check the node's disk.",
				device, cause))
		}
	})
}

// reload reads the layouts of some GPUs again: another process may have changed them. The partitions of a layout of an earlier boot
// no longer exist, but its places still count.
func (l *layouts) reload(ctx context.Context, bootID string, devices []string) {
	if l.store == nil {
		return
	}
	for _, device := range devices {
		layout, err := l.store.Read(device)
		l.note(&l.unread, device, err != nil && l.get(device) == nil && !errors.As(err, new(*store.CorruptError)))
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not read the layout of a GPU")
			continue // keep the copy in memory
		}
		l.putLatest(device, layout)
		if layout != nil && layout.BootID != bootID {
			layout = nil
		}
		l.put(device, layout)
	}
}

// sortedPlaces sorts places by their start and removes duplicates.
func sortedPlaces(places []gpu.Place) []gpu.Place {
	slices.SortFunc(places, func(a, b gpu.Place) int {
		return cmp.Or(cmp.Compare(a.Placement.Start, b.Placement.Start), cmp.Compare(a.ProfileID, b.ProfileID))
	})
	return slices.Compact(places)
}
