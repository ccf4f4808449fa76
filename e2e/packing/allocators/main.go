// SPDX-License-Identifier: Apache-2.0

// Command allocators runs claims through the structured allocator of one release of Kubernetes: the one that the module it is
// built in requires. v1.35, v1.36.1 and v1.36 are such modules with this same file. It reads a query and writes the outcomes as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// query asks for claims, one after the other on each empty node, with each set of features. Fields and features that a release
// does not know are dropped, as its API server drops them.
type query struct {
	Classes  classes
	Node     string
	Slices   [][]*resourceapi.ResourceSlice
	Features []structured.Features
	Claims   [][]*resourceapi.ResourceClaim
}

// outcome is what was allocated, or why nothing was: fewer results than claims and no error mean that the next does not fit.
type outcome struct {
	Results []resourceapi.AllocationResult `json:",omitempty"`
	Error   string                         `json:",omitempty"`
}

// classes lists DeviceClasses for the allocator.
type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no DeviceClass %s", name)
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run answers the query, ordered by slices, then claims, then features.
func run(ctx context.Context) error {
	var q query
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return fmt.Errorf("decode query: %w", err)
	}
	outcomes := []outcome{}
	for _, slices := range q.Slices {
		for _, claims := range q.Claims {
			for _, f := range q.Features {
				outcomes = append(outcomes, inTurn(ctx, q, f, slices, claims))
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(outcomes); err != nil {
		return fmt.Errorf("encode outcomes: %w", err)
	}
	return nil
}

// inTurn allocates claims one after the other on an empty node.
func inTurn(ctx context.Context, q query, f structured.Features, slices []*resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim,
) (o outcome) {
	state := structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		results, err := allocate(ctx, q, f, state, slices, claim)
		if err != nil {
			o.Error = err.Error()
		}
		if len(results) == 0 {
			break
		}
		o.Results = append(o.Results, results[0])
		commit(state, results[0])
	}
	return o
}

// commit adds what was allocated to the state, as kube-scheduler reads it from claims (foreachAllocatedDevice of its plugin
// dynamicresources).
func commit(state structured.AllocatedState, allocated resourceapi.AllocationResult) {
	for _, r := range allocated.Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
}

// allocate allocates a claim on a node. No result means that the node does not fit.
func allocate(ctx context.Context, q query, f structured.Features, state structured.AllocatedState, slices []*resourceapi.ResourceSlice,
	claim *resourceapi.ResourceClaim,
) ([]resourceapi.AllocationResult, error) {
	a, err := structured.NewAllocator(ctx, f, state, q.Classes, slices,
		cel.NewCache(10, cel.Features{EnableConsumableCapacity: f.ConsumableCapacity}))
	if err != nil {
		return nil, fmt.Errorf("create allocator: %w", err)
	}
	node := &corev1.Node{}
	node.Name = q.Node
	results, err := a.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, fmt.Errorf("allocate %s: %w", claim.Name, err)
	}
	return results, nil
}
