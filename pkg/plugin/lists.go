// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/klog/v2"
)

// listsTimeout bounds the question whether the API server takes lists, which comes before the first publication.
const listsTimeout = 5 * time.Second

// lists tells whether attributes are published as lists.
type lists struct {
	// taken tells that they are.
	taken bool
	// answered tells that the API server has said so or has refused.
	answered bool
	reason   string // why they are not, as logged
}

// ask finds out whether the API server takes lists, if they are wanted and it is not known yet.
func (l *lists) ask(ctx context.Context, client kubernetes.Interface, config Config) {
	if !config.ListAttributes || l.answered {
		return
	}
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, listsTimeout)
	defer cancel()
	err := tryLists(ctx, client, config)
	l.taken = err == nil
	l.answered = err == nil || errors.Is(err, errNoLists)
	switch {
	case err == nil:
		logger.Info("The API server takes lists: attributes that may have several values are published as such")
	case err.Error() != l.reason:
		l.reason = err.Error()
		logger.Info("Attributes are published with one value each, in spite of --list-attributes", "reason", l.reason)
	}
}

// errNoLists is wrapped by tryLists where the API server does not take lists.
var errNoLists = errors.New("turn on the feature gate DRAListTypeAttributes of the API server and the scheduler, and restart the plugin")

// tryLists has the API server show what it would store of a slice with a list; nothing is stored. An API server that does
// not know lists drops them, and refuses the attribute that is left without a value.
func tryLists(ctx context.Context, client kubernetes.Interface, config Config) error {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: config.NodeName + "-lists-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: config.DriverName, NodeName: &config.NodeName,
			Pool: resourceapi.ResourcePool{Name: config.NodeName, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name:       "lists",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{deviceattribute.StandardDeviceAttributeNUMANode: {IntValues: []int64{0, 1}}},
			}},
		},
	}
	would, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server refuses a list: %w: %w", err, errNoLists)
	case err != nil:
		return fmt.Errorf("ask the API server whether it takes lists: %w", err)
	case len(would.Spec.Devices) != 1 || len(would.Spec.Devices[0].Attributes[deviceattribute.StandardDeviceAttributeNUMANode].IntValues) != 2:
		return fmt.Errorf("the API server drops lists: %w", errNoLists)
	}
	return nil
}
