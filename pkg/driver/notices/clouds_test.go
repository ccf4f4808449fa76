// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// answer is what a fake metadata server says about a path; without a status it is 200.
type answer struct {
	status int
	body   string
	header map[string]string
}

// fakeCloud is a metadata server that answers by path, and only as its cloud does: with the headers that it asks for.
type fakeCloud struct {
	cloud   string
	answers map[string]answer
	// tokens counts those given; each holds for one poll where expire is set.
	tokens atomic.Int64
	expire bool
	used   atomic.Int64
}

func (f *fakeCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch f.cloud {
	case AWS:
		if r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get(awsTokenHeader+"-ttl-seconds") == "21600" {
			_, _ = fmt.Fprintf(w, "token-%d", f.tokens.Add(1))
			return
		}
		if f.expire && f.tokens.Load() == 1 && f.used.Add(1) > 2 || r.Header.Get(awsTokenHeader) != fmt.Sprintf("token-%d", f.tokens.Load()) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	case GCE:
		if r.Header.Get("Metadata-Flavor") != "Google" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
	case Azure:
		if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	a, known := f.answers[r.URL.Path]
	if !known {
		a = answer{status: http.StatusNotFound}
	}
	for key, value := range a.header {
		w.Header().Set(key, value)
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	_, _ = w.Write([]byte(a.body))
}

// source starts the server and returns the source that asks it.
func (f *fakeCloud) source(t *testing.T) Source {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	s, err := NewSource(f.cloud, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	switch s := s.(type) {
	case *aws:
		s.now = func() time.Time { return begin }
	case *azure:
		s.now = func() time.Time { return begin }
	}
	return s
}

const (
	awsSpot      = "/latest/meta-data/spot/instance-action"
	awsScheduled = "/latest/meta-data/events/maintenance/scheduled"
	gceInstance  = "/computeMetadata/v1/instance/"
)

func TestClouds(t *testing.T) {
	gce := func(preempted, maintenance string) map[string]answer {
		return map[string]answer{gceInstance + "preempted": {body: preempted}, gceInstance + "maintenance-event": {body: maintenance}}
	}
	events := func(events string) map[string]answer {
		return map[string]answer{
			"/metadata/instance/compute/name": {body: "aks-gpu-1_3"},
			"/metadata/scheduledevents":       {body: `{"DocumentIncarnation": 2, "Events": [` + events + `]}`},
		}
	}
	event := func(kind, status, when, machine string) string {
		return fmt.Sprintf(`{"EventId": "E-%s", "EventType": %q, "EventStatus": %q, "NotBefore": %q, "Description": "d", "Resources": ["other", %q],
			"ResourceType": "VirtualMachine", "DurationInSeconds": -1}`, kind, kind, status, when, machine)
	}
	for name, tt := range map[string]struct {
		cloud   string
		answers map[string]answer
		want    []Notice
		err     string // part of it; empty for none
	}{
		"aws, nothing": {AWS, map[string]answer{awsScheduled: {body: "[]"}}, nil, ""},
		"aws, spot": {AWS, map[string]answer{awsSpot: {body: `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`}},
			[]Notice{{ID: "spot", Kind: Reclaim, At: at(120), Text: "spot interruption, terminate"}}, ""},
		"aws, maintenance": {AWS, map[string]answer{awsScheduled: {body: `[{"NotBefore": "21 Mar 2026 09:00:43 GMT", "Code": "system-reboot",
			"Description": "scheduled reboot", "EventId": "instance-event-0d59", "NotAfter": "21 Mar 2026 09:17:23 GMT", "State": "active"},
			{"NotBefore": "rubbish", "Code": "instance-stop", "EventId": "done", "State": "completed"}]`}},
			[]Notice{{ID: "instance-event-0d59", Kind: Maintenance, At: time.Date(2026, 3, 21, 9, 0, 43, 0, time.UTC),
				Text: "system-reboot, scheduled reboot"}}, ""},
		"aws, rubbish":           {AWS, map[string]answer{awsSpot: {body: "<html>"}}, nil, "spot interruption notice"},
		"aws, no time":           {AWS, map[string]answer{awsSpot: {body: `{"action": "stop"}`}}, nil, `"" is not a time`},
		"aws, another century":   {AWS, map[string]answer{awsSpot: {body: `{"action": "stop", "time": "2126-03-01T12:02:00Z"}`}}, nil, "more than a year away"},
		"aws, scheduled rubbish": {AWS, map[string]answer{awsScheduled: {body: `{"a": [`}}, nil, "scheduled events"},
		"aws, failure":           {AWS, map[string]answer{awsSpot: {status: 500}}, nil, "HTTP 500"},
		"aws, spot, and rubbish besides": {AWS, map[string]answer{awsSpot: {body: `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`},
			awsScheduled: {body: `[{"NotBefore": "rubbish", "Code": "instance-stop", "EventId": "e", "State": "active"}]`}},
			[]Notice{{ID: "spot", Kind: Reclaim, At: at(120), Text: "spot interruption, terminate"}}, `"rubbish" is not a time`},
		"aws, spot, and a failure besides": {AWS, map[string]answer{awsSpot: {body: `{"action": "terminate", "time": "2026-03-01T12:02:00Z"}`},
			awsScheduled: {status: 503}},
			[]Notice{{ID: "spot", Kind: Reclaim, At: at(120), Text: "spot interruption, terminate"}}, "HTTP 503"},
		"aws, redirect": {AWS, map[string]answer{awsSpot: {status: 302, header: map[string]string{"Location": "/elsewhere"}}}, nil, "HTTP 302"},
		"aws, endless":  {AWS, map[string]answer{awsSpot: {body: strings.Repeat(" ", maxBody+1)}}, nil, "more than 65536 bytes"},

		"gce, nothing":        {GCE, gce("FALSE", "NONE"), nil, ""},
		"gce, preempted":      {GCE, gce("TRUE", "NONE"), []Notice{{ID: "preempted", Kind: Reclaim, Within: 30 * time.Second, Text: "the instance is preempted"}}, ""},
		"gce, maintenance":    {GCE, gce("FALSE\n", "TERMINATE_ON_HOST_MAINTENANCE"), []Notice{{ID: "maintenance-event", Kind: Maintenance, Within: time.Hour, Text: "TERMINATE_ON_HOST_MAINTENANCE"}}, ""},
		"gce, live migration": {GCE, gce("FALSE", "MIGRATE_ON_HOST_MAINTENANCE"), nil, ""},
		"gce, rubbish":        {GCE, gce("maybe", "NONE"), nil, `"maybe", which is unknown`},
		"gce, more rubbish":   {GCE, gce("FALSE", "SOON"), nil, `"SOON", which is unknown`},
		"gce, preempted, and rubbish besides": {GCE, gce("TRUE", "SOON"),
			[]Notice{{ID: "preempted", Kind: Reclaim, Within: 30 * time.Second, Text: "the instance is preempted"}}, `"SOON", which is unknown`},
		"gce, another server": {GCE, map[string]answer{gceInstance + "preempted": {body: "TRUE", header: map[string]string{"Metadata-Flavor": "x"}}}, nil, "not that of Google"},
		"gce, not there":      {GCE, nil, nil, "is this Google Cloud?"},

		"azure, nothing": {Azure, events(""), nil, ""},
		"azure, spot": {Azure, events(event("Preempt", "Scheduled", "Sun, 01 Mar 2026 12:00:30 GMT", "AKS-GPU-1_3")),
			[]Notice{{ID: "E-Preempt", Kind: Reclaim, At: at(30), Text: "Preempt Scheduled d"}}, ""},
		"azure, one digit": {Azure, events(event("Redeploy", "Scheduled", "Sun, 1 Mar 2026 12:10:00 GMT", "aks-gpu-1_3")),
			[]Notice{{ID: "E-Redeploy", Kind: Maintenance, At: at(600), Text: "Redeploy Scheduled d"}}, ""},
		"azure, started": {Azure, events(event("Reboot", "Started", "", "aks-gpu-1_3")),
			[]Notice{{ID: "E-Reboot", Kind: Maintenance, Within: time.Second, Text: "Reboot Started d"}}, ""},
		"azure, another machine":    {Azure, events(event("Preempt", "Scheduled", "Sun, 01 Mar 2026 12:00:30 GMT", "aks-gpu-1_4")), nil, ""},
		"azure, a pause of seconds": {Azure, events(event("Freeze", "Scheduled", "Sun, 01 Mar 2026 12:00:30 GMT", "aks-gpu-1_3")), nil, ""},
		"azure, rubbish":            {Azure, events(`7`), nil, "scheduled events"},
		"azure, no time":            {Azure, events(event("Preempt", "Scheduled", "soon", "aks-gpu-1_3")), nil, `"soon" is not a time`},
		"azure, spot, and rubbish besides": {Azure, events(event("Reboot", "Scheduled", "soon", "aks-gpu-1_3") + "," +
			event("Preempt", "Scheduled", "Sun, 01 Mar 2026 12:00:30 GMT", "aks-gpu-1_3")),
			[]Notice{{ID: "E-Preempt", Kind: Reclaim, At: at(30), Text: "Preempt Scheduled d"}}, `"soon" is not a time`},
		"azure, no list":             {Azure, map[string]answer{"/metadata/instance/compute/name": {body: "vm"}, "/metadata/scheduledevents": {body: "{}"}}, nil, "no list"},
		"azure, a name that is none": {Azure, map[string]answer{"/metadata/instance/compute/name": {body: "<html>\n</html>"}}, nil, "is none"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := (&fakeCloud{cloud: tt.cloud, answers: tt.answers}).source(t).Poll(t.Context())
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("notices (-want +got):\n%s", diff)
			}
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got error %v, want %q", err, tt.err)
			}
		})
	}
}

// A token holds for many polls, and one that has expired early is replaced.
func TestAWS_Token(t *testing.T) {
	for name, tt := range map[string]struct {
		expire bool
		want   int64
	}{"holds": {false, 1}, "expired": {true, 2}} {
		f := &fakeCloud{cloud: AWS, answers: map[string]answer{awsScheduled: {body: "[]"}}, expire: tt.expire}
		s := f.source(t)
		for range 3 {
			if _, err := s.Poll(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := f.tokens.Load(); got != tt.want {
			t.Errorf("%s: got %d tokens, want %d", name, got, tt.want)
		}
	}
}

// A service that hangs costs no more than the time that a poll has, one that is not there answers at once.
func TestClouds_Hang(t *testing.T) {
	hung := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	defer server.Close()
	defer close(hung)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, cloud := range []string{AWS, GCE, Azure} {
		for _, url := range []string{server.URL, gone.URL} {
			s, err := NewSource(cloud, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if got, err := s.Poll(ctx); err == nil || got != nil {
				t.Errorf("%s: got %v, %v; want an error", cloud, got, err)
			}
			cancel()
		}
	}
}

func TestNewSource_Unknown(t *testing.T) {
	if _, err := NewSource("ibm", MetadataURL, nil); err == nil || !strings.Contains(err.Error(), `"ibm"`) {
		t.Errorf("got %v, want an error that names it", err)
	}
}

func TestOfNode(t *testing.T) {
	taint := func(key string) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "other"}, {Key: key, Value: "v", Effect: "NoSchedule"}}}}
	}
	condition := func(kind, status, message string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"},
			{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionStatus(status), Message: message}}}}
	}
	const preempt = "Preempt Scheduled: Sun, 01 Mar 2026 12:00:30 GMT. For more information, see https://aka.ms/aks-spot-eviction. EventId: A1"
	ofCondition := func(name, message string, kind Kind, when time.Time, within time.Duration) []Notice {
		return []Notice{{Source: Node, ID: "condition " + name, Kind: kind, At: when, Within: within, Text: message}}
	}
	ofTaint := func(key string, kind Kind, within time.Duration) []Notice {
		return []Notice{{Source: Node, ID: key, Kind: kind, Within: within, Text: "taint " + key}}
	}
	for name, tt := range map[string]struct {
		node *corev1.Node
		want []Notice
	}{
		"none":                    {&corev1.Node{}, nil},
		"another's":               {taint("example.com/spot"), nil},
		"aws spot":                {taint("aws-node-termination-handler/spot-itn"), ofTaint("aws-node-termination-handler/spot-itn", Reclaim, 2*time.Minute)},
		"aws maintenance":         {taint("aws-node-termination-handler/scheduled-maintenance"), ofTaint("aws-node-termination-handler/scheduled-maintenance", Maintenance, 0)},
		"aws rebalance":           {taint("aws-node-termination-handler/rebalance-recommendation"), nil},
		"gke":                     {taint("cloud.google.com/impending-node-termination"), ofTaint("cloud.google.com/impending-node-termination", Reclaim, 30*time.Second)},
		"karpenter":               {taint("karpenter.sh/disrupted"), ofTaint("karpenter.sh/disrupted", Reclaim, 0)},
		"aks auto-drain":          {taint("remediator.kubernetes.azure.com/unschedulable"), ofTaint("remediator.kubernetes.azure.com/unschedulable", Maintenance, 0)},
		"aks spot":                {condition("PreemptionScheduled", "True", preempt), ofCondition("PreemptionScheduled", preempt, Reclaim, at(30), 0)},
		"aks spot, over":          {condition("PreemptionScheduled", "False", preempt), nil},
		"aks spot, without time":  {condition("PreemptionScheduled", "True", "Preempt Scheduled: soon"), ofCondition("PreemptionScheduled", "Preempt Scheduled: soon", Reclaim, time.Time{}, 30*time.Second)},
		"aks event":               {condition("VMEventScheduled", "True", preempt), ofCondition("VMEventScheduled", preempt, Reclaim, at(30), 0)},
		"aks, a pause of seconds": {condition("VMEventScheduled", "True", "Freeze Scheduled: Sun, 01 Mar 2026 12:00:30 GMT."), nil},
		"aks, no event":           {condition("VMEventScheduled", "False", "VM has no scheduled event"), nil},
		"aks, rubbish":            {condition("VMEventScheduled", "True", "\x00 Scheduled:"), nil},
	} {
		if diff := cmp.Diff(tt.want, OfNode(tt.node)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
