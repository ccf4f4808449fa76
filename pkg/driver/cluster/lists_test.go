// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// answering is an API server that answers the creation of a slice so, after it has changed what it was given.
func answering(t *testing.T, answer func(*resourceapi.ResourceSlice) error) (client *fake.Clientset, asked *int) {
	t.Helper()
	client, asked = fake.NewClientset(), new(int)
	client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		*asked++
		create, ok := action.(k8stesting.CreateActionImpl)
		if !ok || !cmp.Equal(create.GetCreateOptions().DryRun, []string{metav1.DryRunAll}) {
			t.Errorf("%T: the slice is not tried, but made", action)
		}
		slice, ok := create.GetObject().DeepCopyObject().(*resourceapi.ResourceSlice)
		if !ok || slice.Name != "" || slice.Spec.Driver != "gpu.cleave.dev" || *slice.Spec.NodeName != "node-1" {
			t.Errorf("the slice that is tried is %+v", create.GetObject())
		}
		err := answer(slice)
		return true, slice, err
	})
	return client, asked
}

// drop takes all lists from a slice, as an API server without the feature gate does.
func drop(s *resourceapi.ResourceSlice) error {
	for i := range s.Spec.Devices {
		for name := range s.Spec.Devices[i].Attributes {
			s.Spec.Devices[i].Attributes[name] = resourceapi.DeviceAttribute{}
		}
	}
	return nil
}

func keep(*resourceapi.ResourceSlice) error { return nil }

func TestLists_Ask(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "resource.k8s.io", Kind: "ResourceSlice"}, "x", nil)
	tests := map[string]struct {
		answer func(*resourceapi.ResourceSlice) error
		taken  bool
		says   string
		asked  int // of two times that it might be
	}{
		"keeps them":   {keep, true, "", 1},
		"drops them":   {drop, false, "DRAListTypeAttributes", 1},
		"drops device": {func(s *resourceapi.ResourceSlice) error { s.Spec.Devices = nil; return nil }, false, "DRAListTypeAttributes", 1},
		"refuses them": {func(*resourceapi.ResourceSlice) error { return invalid }, false, "DRAListTypeAttributes", 1},
		// These answers may be others later.
		"is away": {func(*resourceapi.ResourceSlice) error { return errors.New("connection refused") }, false, "connection refused", 2},
		"forbids it": {func(*resourceapi.ResourceSlice) error {
			return apierrors.NewForbidden(schema.GroupResource{}, "x", nil)
		}, false, "forbidden", 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			answer := tt.answer
			client, asked := answering(t, func(s *resourceapi.ResourceSlice) error { return answer(s) })
			l := NewLists(client, "gpu.cleave.dev", "node-1")
			changed := false
			for range 2 {
				changed = l.Ask(t.Context()) || changed
			}
			if changed != tt.taken || l.Accepted() != tt.taken || *asked != tt.asked || !strings.Contains(l.reason, tt.says) || (l.reason == "") != tt.taken {
				t.Errorf("got %t because of %q after %d questions, want %t, %q, %d", l.Accepted(), l.reason, *asked, tt.taken, tt.says, tt.asked)
			}
			if answer = keep; tt.asked == 2 && (!l.Ask(t.Context()) || !l.Accepted()) {
				t.Error("lists are not published though the API server accepts them")
			}
		})
	}
}

func TestLists_NotWanted(t *testing.T) {
	var l *Lists
	if l.Ask(t.Context()) || l.Accepted() {
		t.Error("lists that nobody wants are accepted")
	}
}
