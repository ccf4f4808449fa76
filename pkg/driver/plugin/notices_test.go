// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// series are the samples of a collector, as "name{labels} value"; that of a histogram is how many it has.
func series(t *testing.T, c prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			all = append(all, fmt.Sprintf("%s{%s} %g", f.GetName(), strings.Join(labels, ","), value))
		}
	}
	return all
}

func TestNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := func(name string) *resourceapi.ResourceClaim {
			return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")},
				Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
					{Resource: "pods", Name: name + "-pod", UID: types.UID(name + "-pod-uid")}}}}
		}
		record := func(name string, admin bool) *records.Record {
			return &records.Record{Claim: records.Claim{Namespace: "ns", Name: name, UID: types.UID(name + "-uid")}, State: records.Prepared,
				Devices: []records.Device{{Device: "d", AdminAccess: admin}}}
		}
		again := record("train", false)
		again.Claim.UID = "another-uid"
		all := []*records.Record{record("train", false), record("monitor", true)}
		pods := cluster.NewPods(func(types.UID) bool { return true })
		events, recorder := startClaimEvents(t, fake.NewClientset(claim("train"), claim("monitor"), claim("late")), pods)
		n := newNoticed(time.Now)
		start := time.Now()
		spot := notices.Decision{Source: notices.AWS, ID: "spot", Kind: notices.Reclaim, Text: "spot", Since: start,
			Deadline: start.Add(2 * time.Minute), EvictAt: start.Add(time.Minute)}
		n.report(spot) // before the records were read
		podsOf := func(uid types.UID) []string {
			if uid == again.Claim.UID {
				return []string{"train-pod"}
			}
			return pods.Of(uid)
		}
		n.connect(func() []*records.Record { return all }, podsOf, events)
		evict := spot
		evict.Evict = true
		deadline := fmt.Sprintf("cleave_node_notice_deadline_seconds{} %g", float64(spot.Deadline.Unix()))
		grace := func(name, state string, seconds int) string {
			return fmt.Sprintf("cleave_notice_claim_grace_seconds{dra_claim_name=%s,namespace=ns,pod=%s-pod,state=%s} %d", name, name, state, seconds)
		}
		const inForce = "cleave_node_notice{kind=reclaim,source=aws} 1"
		for _, tt := range []struct {
			name   string
			do     func()
			d      notices.Decision
			told   []string
			series []string
		}{
			{"nothing is known yet", func() {}, notices.Decision{}, nil, nil},
			{"grace", func() {}, spot, []string{"Pod ns/train-pod NodeNotice", "ResourceClaim ns/train NodeNotice"}, nil},
			{"again", func() { <-time.After(10 * time.Second) }, spot, nil, []string{grace("train", "held", 10), inForce, deadline}},
			{"a late claim", func() { all = append(all, record("late", false)) }, spot,
				[]string{"Pod ns/late-pod NodeNotice", "ResourceClaim ns/late NodeNotice"}, nil},
			{"eviction", func() { <-time.After(50 * time.Second) }, evict, []string{"Pod ns/late-pod NodeNotice", "Pod ns/train-pod NodeNotice",
				"ResourceClaim ns/late NodeNotice", "ResourceClaim ns/train NodeNotice"}, nil},
			{"one ends", func() { all = all[1:] }, evict, nil, nil},
			{"longer", func() { <-time.After(5 * time.Second) }, evict, nil,
				[]string{grace("late", "held", 55), grace("train", "released", 60), inForce, deadline}},
			{"two of one name ended", func() { all = append(all, again) }, evict, []string{"ResourceClaim ns/train NodeNotice"},
				[]string{grace("late", "held", 55), grace("train", "held", 0), grace("train", "released", 60), inForce, deadline}},
			{"and the second ends", func() { all = all[:len(all)-1] }, evict, nil, nil},
			{"reported once", func() {}, evict, nil, []string{grace("late", "held", 55), grace("train", "released", 0), inForce, deadline}},
			{"long after", func() {
				for range 13 {
					<-time.After(releasedFor / 12)
					n.report(evict)
				}
			}, evict, []string{"Pod ns/late-pod NodeNotice", "Pod ns/late-pod NodeNotice", // every half hour
				"ResourceClaim ns/late NodeNotice", "ResourceClaim ns/late NodeNotice"}, []string{grace("late", "held", 3955), inForce, deadline}},
			{"withdrawn", func() {}, notices.Decision{}, []string{"Pod ns/late-pod NodeNoticeWithdrawn", "ResourceClaim ns/late NodeNoticeWithdrawn"}, []string{}},
			{"still withdrawn", func() {}, notices.Decision{}, nil, []string{}},
			{"another", func() {}, spot, []string{"Pod ns/late-pod NodeNotice", "ResourceClaim ns/late NodeNotice"}, nil},
		} {
			tt.do()
			n.report(tt.d)
			synctest.Wait()
			subjects, _ := recorder.took()
			var told []string
			for _, s := range subjects {
				f := strings.Fields(s)
				told = append(told, f[0]+" "+f[1]+" "+f[3])
			}
			slices.Sort(told)
			if diff := cmp.Diff(tt.told, told); diff != "" {
				t.Errorf("%s: Events (-want +got):\n%s", tt.name, diff)
			}
			if got := series(t, n); tt.series != nil {
				slices.Sort(got)
				slices.Sort(tt.series)
				if diff := cmp.Diff(tt.series, append([]string{}, got...)); diff != "" {
					t.Errorf("%s: metrics (-want +got):\n%s", tt.name, diff)
				}
			}
		}
	})
}

// What a metadata server says becomes a taint on all devices that the API server has, an Event on the node, and a metric.
func TestControl_Notices(t *testing.T) {
	var says atomic.Value
	says.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, isSpot := says.Load().(string), strings.HasSuffix(r.URL.Path, "/spot/instance-action")
		switch {
		case r.Method == http.MethodPut:
			body = "token"
		case !isSpot || body == "":
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	b := newControlBed(t)
	recorder := &objectRecorder{}
	b.events = cluster.NewEventsWith(recorder, "node-1")
	b.config.Notices = NoticeConfig{Sources: []string{"node", "aws"}, URL: server.URL, Policy: notices.Policy{Lead: time.Hour, EvictBefore: time.Minute}}
	b.notices = newNotices(b.service)
	b.run("a30")
	b.published("at the start", func(devices map[string][]string) bool {
		return len(devices) > 2 && !allTainted(devices, nodeslices.TaintNotice)
	})
	says.Store(fmt.Sprintf(`{"action": "terminate", "time": %q}`, time.Now().Add(2*time.Minute).UTC().Format(time.RFC3339)))
	b.published("spot", func(devices map[string][]string) bool { return allTainted(devices, nodeslices.TaintNotice) })
	subjects, _ := recorder.took()
	if !slices.ContainsFunc(subjects, func(s string) bool { return strings.HasPrefix(s, "Node /node-1") && strings.HasSuffix(s, "NodeNotice") }) {
		t.Errorf("got Events %q, want NodeNotice on the node", subjects)
	}
	if got := series(t, b.metrics.notices); !slices.Contains(got, "cleave_node_notice{kind=reclaim,source=aws} 1") {
		t.Errorf("got metrics %q", got)
	}
}
