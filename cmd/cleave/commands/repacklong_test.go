// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/pkg/tools/repacking"
)

// TestRepack_Busy: where pods are created all the time, those that were there first are waited for.
func TestRepack_Busy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, n := scatteredCluster(t), 0
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: fmt.Sprintf("job-%d", n), CreationTimestamp: metav1.Now()}}
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
			err := client.Tracker().Add(p)
			if n > 0 {
				err = errors.Join(err, client.Tracker().Delete(pods, "ml", fmt.Sprintf("job-%d", n-1)))
			}
			n++
			return err != nil, nil, err
		})
		began := time.Now()
		advice, err := applyFlags().repacker(client, &bytes.Buffer{}).Begin(t.Context())
		if err != nil || len(advice.Steps) != 1 || time.Since(began) != 2*time.Second {
			t.Errorf("got %+v, %v after %s, want a step after 2s", advice, err, time.Since(began))
		}
	})
}

// TestRepack_WindowCloses: a budget that allows the eviction once the window has closed is too late.
func TestRepack_WindowCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which begins on a Saturday at midnight, UTC
		client := scatteredCluster(t)
		closes, late := time.Now().Add(5*time.Minute), 0
		evictions(t, client, func(int) error {
			if time.Now().Before(closes) {
				return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
			}
			late++
			return nil
		})
		f := applyFlags()
		f.format, f.every, f.zone, f.windows = "table", 10*time.Minute, "UTC", []string{"Sat 00:00-00:05"}
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		r := f.repacker(client, &bytes.Buffer{})
		advice, err := r.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Apply(t.Context(), advice, 0)
		if stop := (*repacking.Stop)(nil); !errors.As(err, &stop) || stop.Reason != repacking.Closed || late > 0 {
			t.Errorf("asked %d times after the window, error %v", late, err)
		}
		if got := taintsOf(t, client, "node-2"); len(got) > 0 {
			t.Errorf("node-2 keeps %v", got)
		}
	})
}

// TestRepack_TaintStays: that a node keeps the taint is said, whatever else went wrong, and it is taken away as soon as that is possible.
func TestRepack_TaintStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which begins on a Saturday at midnight, UTC
		client, began := scatteredCluster(t), time.Now()
		broken := false // once after the evictions
		evictions(t, client, func(int) error { broken = true; return apierrors.NewTooManyRequests("budget", 0) })
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			fails := broken
			broken = false
			return fails, nil, errors.New("connection refused")
		})
		f := applyFlags()
		f.format, f.every, f.zone, f.windows = "table", 10*time.Minute, "UTC", []string{"Sat 00:00-00:05"}
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		r := f.repacker(client, &bytes.Buffer{})
		advice, err := r.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Apply(t.Context(), advice, 0)
		for _, want := range []string{"no window is open", "of node node-2: connection refused"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		if len(taintsOf(t, client, "node-2")) == 0 {
			t.Error("node-2 has no taint")
		}
		<-time.After(time.Until(began.Add(7 * 24 * time.Hour))) // when the window opens next
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := r.Serve(ctx, f.every, 0); err != nil {
			t.Error(err)
		}
		if got := taintsOf(t, client, "node-2"); len(got) > 0 {
			t.Errorf("node-2 keeps %v until the next window", got)
		}
	})
}
