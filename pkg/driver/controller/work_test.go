// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// The active policy is written when it changes, and again after a failure.
func TestWorkRunner_Keep(t *testing.T) {
	full := errors.New("no space left on device")
	var kept []string
	var err error
	o := &Options{KeepPolicy: func(p *Policy) error {
		kept = append(kept, p.Name)
		return err
	}}
	r := workRunner{kept: &Policy{Name: "before", Policy: &v1alpha1.NodePolicy{}}} // as after a restart
	for _, step := range []struct {
		name string
		err  error
		want []string
	}{
		{"before", nil, nil},
		{"new", full, []string{"new"}},
		{"new", nil, []string{"new"}},
		{"new", nil, nil},
		{"before", nil, []string{"before"}},
	} {
		kept, err = nil, step.err
		r.start(t.Context(), o, r.keep(&Policy{Name: step.name, Policy: &v1alpha1.NodePolicy{}}), func() {})
		r.await(t.Context(), time.Time{})
		if !slices.Equal(kept, step.want) {
			t.Errorf("%s, %v: wrote %q, want %q", step.name, step.err, kept, step.want)
		}
	}
}
