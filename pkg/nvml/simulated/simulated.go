// Package simulated opens NVML sessions on simulated nodes, in process and without a library: for tests, and to tell
// what a node of a known model would publish.
package simulated

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/pkg/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// ErrUnknownModel is wrapped by Open for a model that does not exist.
var ErrUnknownModel = errors.New("unknown node model")

// NodeModels lists the models that Open knows, sorted.
func NodeModels() []string { return sim.NodeModels() }

// Open starts a session on a fresh node of a model.
func Open(ctx context.Context, model string) (*nvml.Session, error) {
	if !slices.Contains(sim.NodeModels(), model) {
		return nil, fmt.Errorf("%w %q: choose one of %s", ErrUnknownModel, model, strings.Join(sim.NodeModels(), ", "))
	}
	node, err := sim.New(model)
	if err != nil {
		return nil, fmt.Errorf("make a node of model %s: %w", model, err)
	}
	return OpenNode(ctx, node)
}

// OpenNode starts a session on a given node.
func OpenNode(ctx context.Context, node *sim.Node) (*nvml.Session, error) {
	return nvml.OpenLibrary(ctx, library{node}, node.Sysfs())
}

// library is a simulated node as an nvml.Library.
type library struct {
	*sim.Node
}

func (l library) DeviceByIndex(index int) (nvml.Device, error) {
	d, err := l.Node.DeviceByIndex(index)
	if err != nil {
		return nil, err
	}
	return device{d}, nil
}

// device is a simulated GPU as an nvml.Device.
type device struct {
	*sim.Device
}

func (d device) RunningProcesses() ([]int, error) {
	clients, err := d.Processes()
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(clients))
	for _, c := range clients {
		pids = append(pids, c.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}
