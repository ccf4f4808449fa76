// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
)

func TestMissingClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var missing, written []string
		var failure error
		changed := make(chan struct{}, 1)
		m := &missingClasses{
			changed: changed, gauge: newMetrics().classesMissing, retry: time.Minute,
			find: func() (*corev1.ObjectReference, []string) {
				return &corev1.ObjectReference{Name: "cleave-plugin"}, missing
			},
			warn: func(_ context.Context, of *corev1.ObjectReference, message string) error {
				if failure == nil {
					written = append(written, of.Name+": "+message)
				}
				return failure
			},
		}
		defer background(t.Context(), m.run)()
		const begin = "cleave-plugin: DeviceClasses that were installed with Cleave do not exist, so pods that request them stay Pending: "
		const end = ". Restore them with helm upgrade, or apply the manifests again."
		for _, step := range []struct {
			what    string
			missing []string
			failure error
			wait    time.Duration
			want    []string
			gauge   float64
		}{
			{"installed", nil, nil, time.Minute, nil, 0},
			{"just deleted", []string{"a"}, nil, classesSettle - time.Second, nil, 0},
			{"another one soon after", []string{"a", "b"}, nil, classesSettle - time.Second, nil, 0},
			{"settled", []string{"a", "b"}, nil, time.Minute, []string{begin + "a, b" + end}, 2},
			{"the same", []string{"a", "b"}, nil, time.Minute, nil, 2},
			{"for long", []string{"a", "b"}, nil, 45 * time.Minute, []string{begin + "a, b" + end}, 2},
			{"many", []string{"a", "b", "c", "d", "e", "f", "g"}, nil, time.Minute, []string{begin + "a, b, c, d, e and 2 more" + end}, 7},
			{"restored", nil, nil, time.Minute, nil, 0},
			{"deleted again, no API server", []string{"a"}, errors.New("refused"), time.Minute, nil, 1},
			{"an API server again", []string{"a"}, nil, 2 * time.Minute, []string{begin + "a" + end}, 1},
		} {
			missing, failure, written = step.missing, step.failure, nil
			changed <- struct{}{}
			<-time.After(step.wait)
			synctest.Wait()
			if diff := cmp.Diff(step.want, written); diff != "" {
				t.Errorf("%s: Events (-want +got):\n%s", step.what, diff)
			}
			if got := testutil.ToFloat64(m.gauge); got != step.gauge {
				t.Errorf("%s: metric %v, want %v", step.what, got, step.gauge)
			}
		}
	})
}
