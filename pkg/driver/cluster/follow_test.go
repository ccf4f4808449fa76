// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A load balancer that closes connections to an API server that is away gives no errors, and that says that it was.
func TestWatcher_BrokenOff(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  bool
	}{
		"broken off":      {time.Minute, true},
		"over as usually": {6 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(nodeObject("training"))
				streams := make(chan *watch.FakeWatcher, 10)
				client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
					stream := watch.NewFake()
					streams <- stream
					return true, stream, nil
				})
				w := newWatcher(t, client)
				<-time.After(tt.after)
				(<-streams).Stop()
				<-streams // the next one
				synctest.Wait()
				w.mu.Lock()
				defer w.mu.Unlock()
				got := slices.ContainsFunc(w.errs, func(err error) bool { return errors.Is(err, errWatchEnded) })
				if got != tt.want {
					t.Errorf("reported: %v, want it to be: %t", w.errs, tt.want)
				}
			})
		})
	}
}
