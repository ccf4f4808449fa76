// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// Slices that were refused are known not to be there until some of their fields were dropped: then they are. An error that no retry mends
// ends the plugin.
func TestPlugin_WriteFailure(t *testing.T) {
	s := newService(validConfig())
	s.counting = &counting{Counting: cluster.NewCounting(fake.NewClientset(), "gpu.cleave.dev", "node-1")}
	var ended error
	p := &plugin{written: s.writes.note, fatal: func(err error) { ended = err }}
	helper := func(err error) func() {
		return func() {
			p.HandleError(t.Context(), fmt.Errorf("%w: %w", kubeletplugin.ErrRecoverable, err), "processing")
		}
	}
	for _, step := range []struct {
		name   string
		do     func()
		failed bool
	}{
		{"nothing yet", func() {}, false},
		{"refused", helper(errors.New("denied by a webhook")), true},
		{"handed to the helper", func() { s.writes.note(nil) }, true},
		{"written, with fields dropped", helper(&resourceslice.DroppedFieldsError{
			DesiredSlice: &resourceapi.ResourceSlice{}, ActualSlice: &resourceapi.ResourceSlice{}}), false},
		{"not handed to the helper", func() { s.writes.note(errors.New("no Node")) }, true},
	} {
		step.do()
		if got := !s.writes.lastFailure().IsZero(); got != step.failed || ended != nil {
			t.Errorf("%s: a write has failed: %t, want %t; ended: %v", step.name, got, step.failed, ended)
		}
	}
	broken := errors.New("socket is gone")
	if p.HandleError(t.Context(), broken, "gRPC"); !errors.Is(ended, broken) {
		t.Errorf("ended: %v, want %v", ended, broken)
	}
}
