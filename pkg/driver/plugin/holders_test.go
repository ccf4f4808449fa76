// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/processes"
)

// Whoever asks has a GPU locked: a file that cannot be read keeps nobody for long, and is read once.
func TestHolders_LookHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan []processes.Process)
		var looks atomic.Int32
		h := newHolders(func(context.Context, *gpu.GPU, *gpu.Partition) ([]processes.Process, error) {
			looks.Add(1)
			return <-answer, nil
		})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 {
			began := time.Now()
			found, err := h.of(gone, nil, nil)
			if !errors.Is(err, errLooking) || len(found) > 0 || time.Since(began) != lookTimeout {
				t.Errorf("got %v, %v after %s", found, err, time.Since(began))
			}
		}
		if n := looks.Load(); n != 1 {
			t.Errorf("%d looks were begun, want one", n)
		}
		answer <- nil
		go func() { answer <- []processes.Process{{PID: 4711, Name: "nv-hostengine"}} }()
		found, err := h.of(gone, nil, nil) // the kubelet's timeout has nothing to do with it
		if want := []claims.Holder{{PID: 4711, Name: "nv-hostengine"}}; err != nil || !slices.Equal(want, found) {
			t.Errorf("got %v, %v, want %v", found, err, want)
		}
	})
}

func TestAllInPods(t *testing.T) {
	for name, tt := range map[string]struct {
		owners map[int]processes.Owner
		want   bool
	}{
		"pods":               {map[int]processes.Owner{1: {Pod: "a"}, 2: {Pod: "b"}}, true},
		"one is of the host": {map[int]processes.Owner{1: {Pod: "a"}, 2: {Name: "nv-hostengine"}}, false},
		"all have ended":     {map[int]processes.Owner{}, false},
		"one is Cleave's":    {map[int]processes.Owner{1: {Pod: "a"}, 2: {Pod: "own", Name: "nvidia-smi"}}, false},
	} {
		if got := allInPods(tt.owners, "own"); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}
