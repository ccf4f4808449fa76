// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Names of what is in the API server.
const (
	Name  = "device.example.com"
	Node  = "node-1"
	Class = "any.example.com"
)

// NewAPIServer has a node and a DeviceClass. It gives claims UIDs, and refuses slices whose devices have bad names.
func NewAPIServer() *fake.Clientset {
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node}},
		&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: Class}, Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", Name)}}},
		}},
	)
	var claims atomic.Int64
	client.PrependReactor("create", "resourceclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceClaim)
		claim.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", claims.Add(1)))
		return false, nil, nil
	})
	client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if len(create.CreateOptions.DryRun) == 0 {
			return false, nil, nil
		}
		slice := create.GetObject().(*resourceapi.ResourceSlice)
		for _, d := range slice.Spec.Devices {
			if wrong := validation.IsDNS1123Label(d.Name); len(wrong) > 0 {
				return true, nil, apierrors.NewBadRequest(fmt.Sprintf("device %q: %s", d.Name, wrong[0]))
			}
		}
		return true, slice, nil
	})
	return client
}
