// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"
)

// listsTimeout bounds the query whether the API server accepts lists.
const listsTimeout = 5 * time.Second

// Lists detects whether the API server accepts list attributes (feature gate DRAListTypeAttributes).
type Lists struct {
	client       kubernetes.Interface
	driver, node string

	accepted atomic.Bool
	// answered is set once the API server has accepted or refused a list.
	answered bool
	reason   string // logged reason why attributes are not lists
}

// NewLists queries on behalf of a driver on a node.
func NewLists(client kubernetes.Interface, driver, node string) *Lists {
	return &Lists{client: client, driver: driver, node: node}
}

// Accepted reports whether the API server has accepted a list. A nil Lists never asks.
func (l *Lists) Accepted() bool { return l != nil && l.accepted.Load() }

// Ask queries the API server unless it has answered before, and reports whether Accepted has changed. It is for one goroutine.
func (l *Lists) Ask(ctx context.Context) (changed bool) {
	if l == nil || l.answered {
		return false
	}
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, listsTimeout)
	defer cancel()
	err := l.try(ctx)
	l.answered = err == nil || errors.Is(err, errNoLists)
	switch {
	case err == nil:
		logger.Info("The API server accepts lists: attributes that may have several values are published as lists")
	case err.Error() != l.reason:
		l.reason = err.Error()
		logger.Info("Attributes are published with one value each, despite --list-attributes", "reason", l.reason)
	}
	return l.accepted.Swap(err == nil) != (err == nil)
}

// errNoLists is wrapped by try if the API server does not accept lists.
var errNoLists = errors.New("turn on the feature gate DRAListTypeAttributes of the API server and the scheduler, and restart the plugin")

// try asks the API server, by a dry run, what it would store of a slice with a list. An API server that does not know lists drops
// them, and rejects the attribute that is left without a value.
func (l *Lists) try(ctx context.Context) error {
	would, err := dryRun(ctx, l.client, l.driver, l.node, resourceapi.Device{
		Name: "lists",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			deviceattribute.StandardDeviceAttributeNUMANode: {IntValues: []int64{0, 1}},
		},
	})
	switch {
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server refuses a list: %w: %w", err, errNoLists)
	case err != nil:
		return fmt.Errorf("ask the API server whether it accepts lists: %w", err)
	case len(would.Spec.Devices) != 1 || len(would.Spec.Devices[0].Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValues) != 2:
		return fmt.Errorf("the API server drops lists: %w", errNoLists)
	}
	return nil
}
