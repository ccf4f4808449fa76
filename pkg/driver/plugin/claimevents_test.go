// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// objectRecorder keeps Events as "type kind namespace/name UID reason: message".
type objectRecorder struct {
	record.FakeRecorder
	mu     sync.Mutex
	events []string
}

func (r *objectRecorder) Event(object runtime.Object, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := object.(*corev1.ObjectReference)
	r.events = append(r.events, fmt.Sprintf("%s %s %s/%s %s %s: %s", kind, o.Kind, o.Namespace, o.Name, o.UID, reason, message))
}

// took are the Events since the last call, without their type.
func (r *objectRecorder) took() (subjects []string, messages map[string]bool) {
	typed, messages := r.typed()
	for _, t := range typed {
		_, subject, _ := strings.Cut(t, " ")
		subjects = append(subjects, subject)
	}
	return subjects, messages
}

func (r *objectRecorder) typed() (subjects []string, messages map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	messages = map[string]bool{}
	for _, e := range r.events {
		subject, message, _ := strings.Cut(e, ": ")
		subjects = append(subjects, subject)
		messages[message] = true
	}
	r.events = nil
	return subjects, messages
}

// renamed are the subjects of Events about any other failure.
func renamed(subjects []string) []string {
	var all []string
	for _, s := range subjects {
		all = append(all, strings.Replace(s, "PartitionInUse", "UnprepareFailed", 1))
	}
	return all
}

// startClaimEvents writes Events of claims until the test ends.
func startClaimEvents(t *testing.T, client kubernetes.Interface, pods *cluster.Pods) (*claimEvents, *objectRecorder) {
	recorder := &objectRecorder{}
	c := newClaimEvents(cluster.Claims{Client: client, Pods: pods}, pods, cluster.NewEventsWith(recorder, "n"), newFailing(time.Now))
	t.Cleanup(background(t.Context(), c.run))
	return c, recorder
}

func TestClaimEvents(t *testing.T) {
	pods := func(uid types.UID) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: uid},
			Status: resourceapi.ResourceClaimStatus{ReservedFor: []resourceapi.ResourceClaimConsumerReference{
				{Resource: "pods", Name: "p", UID: "p-uid"}, {APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "g-uid"}, {Resource: "pods", Name: "q", UID: "q-uid"},
			}},
		}
	}
	onClaim, onP, onQ := "ResourceClaim ns/c c-uid PartitionInUse", "Pod ns/p p-uid PartitionInUse", "Pod ns/q q-uid PartitionInUse"
	for name, tt := range map[string]struct {
		claims []runtime.Object
		want   []string
	}{
		"claim with pods":     {[]runtime.Object{pods("c-uid")}, []string{onClaim, onP, onQ}},
		"claim is gone":       {nil, []string{onClaim}},
		"another of its name": {[]runtime.Object{pods("other")}, []string{onClaim}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				term, recorder := startClaimEvents(t, fake.NewClientset(tt.claims...), nil)
				claim := records.Claim{Namespace: "ns", Name: "c", UID: "c-uid"}
				inUse := errors.Join(errors.New("another device"), fmt.Errorf("unprepare: %w", &claims.InUseError{Device: "gpu-0-mig-9-4"}))
				for _, step := range []struct {
					what string
					err  error
					want []string
				}{
					{"in use", inUse, tt.want},
					{"still in use", inUse, nil},
					{"another device", &claims.InUseError{Device: "gpu-0-mig-19-0"}, tt.want},
					{"unprepared", nil, nil},
					{"in use again", inUse, tt.want},
					{"another error", gpu.ErrLost, renamed(tt.want)},
					{"the same error", gpu.ErrLost, nil},
					{"processes of its pods", fmt.Errorf("processes [7 8]: %w", gpu.ErrInUse), renamed(tt.want)},
					{"one of them ended", fmt.Errorf("processes [8]: %w", gpu.ErrInUse), nil},
					{"the plugin ends", context.Canceled, nil},
				} {
					term.unprepared(claim, step.err)
					synctest.Wait()
					got, messages := recorder.took()
					if diff := cmp.Diff(step.want, got); diff != "" {
						t.Errorf("%s: Events (-want +got):\n%s", step.what, diff)
					}
					if len(got) > 0 && len(messages) != 1 {
						t.Errorf("%s: got messages %v, want the same on claim and pods", step.what, messages)
					}
				}
			})
		})
	}
}

// What is joined to a partition in use is said, too, once for each cause.
func TestCauseOf(t *testing.T) {
	use := func(device string) error { return fmt.Errorf("unprepare: %w", &claims.InUseError{Device: device}) }
	full := errors.New("no space")
	for name, tt := range map[string]struct {
		err                   error
		cause, inUse, besides string
	}{
		"another error": {full, "no space", "", ""},
		"in use":        {use("a"), "a", "a", ""},
		"by whom":       {&claims.InUseError{Device: "a", Named: true}, "a by those named", "a", ""}, // said once more when it is known
		"two in use":    {errors.Join(use("a"), use("b")), "a", "a", ""},
		"joined":        {errors.Join(full, use("a")), "a: no space", "a", "no space"},
		"wrapped":       {fmt.Errorf("claim: %w", errors.Join(use("a"), fmt.Errorf("record: %w", full))), "a: record: no space", "a", "record: no space"},
	} {
		t.Run(name, func(t *testing.T) {
			cause, inUse, besides := causeOf(tt.err)
			device := ""
			if inUse != nil {
				device = inUse.Device
			}
			text := ""
			if besides != nil {
				text = besides.Error()
			}
			if diff := cmp.Diff([]string{tt.cause, tt.inUse, tt.besides}, []string{cause, device, text}); diff != "" {
				t.Errorf("cause, device and the rest (-want +got):\n%s", diff)
			}
		})
	}
}

// Pods whose Event could not be written, as the API server did not answer, get it with a later attempt.
func TestClaimEvents_PodsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c-uid"}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p-uid"}}
		client := fake.NewClientset(claim)
		silent := true
		client.PrependReactor("get", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return silent, nil, errors.New("timeout")
		})
		c, recorder := startClaimEvents(t, client, nil)
		const onClaim, onPod = "ResourceClaim ns/c c-uid UnprepareFailed", "Pod ns/p p-uid UnprepareFailed"
		for _, want := range [][]string{{onClaim}, nil, {onClaim, onPod}, nil} {
			c.unprepared(records.Claim{Namespace: "ns", Name: "c", UID: "c-uid"}, gpu.ErrLost)
			synctest.Wait()
			got, _ := recorder.took()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			silent = false
			<-time.After(podsRetry / 2)
		}
	})
}

func TestClaimEvents_MPSNotStarted(t *testing.T) {
	failed := func(err error) error {
		return fmt.Errorf("prepare: %w", &mps.StartError{Device: "gpu-0000-1b-00-0", Err: err})
	}
	claim := records.Claim{Namespace: "ns", Name: "c", UID: "c-uid"}
	c := newClaimEvents(nil, nil, nil, newFailing(time.Now))
	now := time.Now()
	c.now = func() time.Time { return now }
	for _, step := range []struct {
		what  string
		err   error
		after time.Duration
		want  string
	}{
		{"no server", failed(errors.New("it ended: code 1\nand 2")), 0, "The pod cannot start: start the MPS server of GPU gpu-0000-1b-00-0: " +
			"it ended: code 1; and 2. The kubelet retries; if this persists, fix the cause."},
		{"in other words", failed(errors.New("it ended: code 2")), 0, ""},
		{"another reason", errors.New("disk full"), 0, ""},
		{"no supervisor", failed(mps.ErrUnavailable), 0, "The pod cannot start: start the MPS server of GPU gpu-0000-1b-00-0: " +
			"the MPS supervisor does not answer. The kubelet retries; if this persists, fix the cause."},
		{"the kubelet gave up", failed(context.Canceled), 0, ""},
		{"forgotten", errors.New("disk full"), 0, ""},
		{"long after", failed(mps.ErrUnavailable), 2 * forgetAfter, "The pod cannot start: start the MPS server of GPU gpu-0000-1b-00-0: " +
			"the MPS supervisor does not answer. The kubelet retries; if this persists, fix the cause."},
		{"prepared", nil, 0, ""},
	} {
		now = now.Add(step.after)
		c.prepared(claim, step.err)
		got := ""
		select {
		case w := <-c.queue:
			got = w.message
			if w.claim != claim || w.reason != reasonMPSNotStarted {
				t.Errorf("%s: got an Event %s on %s", step.what, w.reason, w.claim)
			}
		default:
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
	if len(c.reported) > 0 {
		t.Errorf("left: %v", c.reported)
	}
}

// The Event about a cause that lasts is written again before the API server deletes it.
func TestClaimEvents_CauseLasts(t *testing.T) {
	c := newClaimEvents(nil, nil, nil, newFailing(time.Now))
	now := time.Now()
	c.now = func() time.Time { return now }
	var written []int
	for minute := range 70 {
		c.unprepared(records.Claim{Namespace: "ns", Name: "c", UID: "c-uid"}, gpu.ErrLost)
		for range len(c.queue) {
			<-c.queue
			written = append(written, minute)
		}
		now = now.Add(time.Minute)
	}
	if diff := cmp.Diff([]int{0, 30, 60}, written); diff != "" {
		t.Errorf("minutes of Events (-want +got):\n%s", diff)
	}
}

func TestClaimEvents_NotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := cluster.NewPods(func(types.UID) bool { return true })
		gone := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c-uid"}}
		gone.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p-uid"}}
		pods.Saw(gone)
		c, recorder := startClaimEvents(t, fake.NewClientset(), pods)
		claim := records.Claim{Namespace: "ns", Name: "c", UID: "c-uid"}
		broken := errors.Join(errors.New("a"), errors.New("b"))
		inUse := fmt.Errorf("undo: %w", &claims.InUseError{Device: "gpu-0-mig-9-4"})
		processes := func(pid int) error { return fmt.Errorf("its pods still have processes [%d]: %w", pid, gpu.ErrInUse) }
		silent := func(text string) error { return fmt.Errorf("share: %w", &claims.SilentError{Err: errors.New(text)}) }
		const begin = "Claim ns/c (c-uid) has ended, but its devices cannot be allocated again: "
		const again = ". Cleave retries; if this persists, fix the cause."
		for _, step := range []struct {
			what string
			do   func()
			want string
		}{
			{"lost", func() { c.released(claim, gpu.ErrLost) }, ""},
			{"fails", func() { c.released(claim, broken) }, begin + "a; b" + again},
			{"again", func() { c.released(claim, broken) }, ""},
			{"in use", func() { c.released(claim, inUse) },
				begin + "partition gpu-0-mig-9-4 is in use. Once nothing uses the partition it is destroyed."},
			{"removed", func() { c.released(claim, nil) }, ""},
			{"its pods run", func() { c.released(claim, processes(1)) },
				begin + processes(1).Error() + ". End those processes on the node; Cleave checks again within minutes."},
			{"others of them", func() { c.released(claim, processes(2)) }, ""},
			{"supervisor silent", func() { c.released(claim, silent("did not answer")) }, begin + "share: did not answer" + again},
			{"not asked yet", func() { c.released(claim, silent("is not asked before noon")) }, ""},
			{"reported by Unprepare", func() { c.unprepared(claim, broken) }, "Cannot unprepare the claim: a; b. The kubelet retries; if this persists, fix the cause."},
			{"and then not again", func() { c.released(claim, broken) }, ""},
			{"the plugin ends", func() { c.unprepared(claim, nil); c.released(claim, context.Canceled) }, ""},
			{"not reported by Unprepare", func() { c.released(claim, broken) }, begin + "a; b" + again},
			{"prepared anew", func() { c.prepared(claim, nil) }, ""},
			{"fails again", func() { c.released(claim, broken) }, begin + "a; b" + again},
			{"unprepared", func() { c.unprepared(claim, nil) }, ""},
		} {
			step.do()
			synctest.Wait()
			counts := !slices.Contains([]string{"lost", "removed", "the plugin ends", "prepared anew", "unprepared"}, step.what)
			if got := slices.Contains(series(t, c.failing), "cleave_claims_failing{operation=release} 1"); got != counts {
				t.Errorf("%s: it counts as failing: %t, want %t", step.what, got, counts)
			}
			want, wantSubjects := map[string]bool{}, []string(nil)
			if step.want != "" {
				want[step.want] = true
				wantSubjects = []string{"Node /n n ClaimNotReleased", "Pod ns/p p-uid ClaimNotReleased", "ResourceClaim ns/c c-uid ClaimNotReleased"}
			}
			subjects, got := recorder.took()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.what, diff)
			}
			if slices.Sort(subjects); step.what == "reported by Unprepare" {
				wantSubjects = []string{"Pod ns/p p-uid UnprepareFailed", "ResourceClaim ns/c c-uid UnprepareFailed"}
			}
			if diff := cmp.Diff(wantSubjects, subjects); diff != "" {
				t.Errorf("%s: Events (-want +got):\n%s", step.what, diff)
			}
		}
	})
}
