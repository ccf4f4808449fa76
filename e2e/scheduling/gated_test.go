// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slowDeletion has the API server keep the deletion of a pod waiting, from the call on that is sent to called until release is called.
func (b priorityBed) slowDeletion() (called <-chan struct{}, release func()) {
	b.t.Helper()
	begun, released := make(chan struct{}, 1), make(chan struct{})
	release = sync.OnceFunc(func() { close(released) })
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		select {
		case begun <- struct{}{}:
		default:
		}
		<-released
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(w).Encode(review)
	}))
	b.t.Cleanup(func() {
		release()
		server.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	hooks := b.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must(b.t, errOf(hooks.Create(b.t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow-deletion"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "slow.deletion.test", SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(30)),
			AdmissionReviewVersions: []string{"v1"}, FailurePolicy: new(admissionregistrationv1.Ignore),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Delete},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{})))
	return begun, release
}

// TestPreemption_EventMeanwhile: an event that queues a pod while its victims are still being deleted is not the last one that it gets.
// kube-scheduler keeps such a pod out of the queue, and only events of pods let it in again (GatingPluginEvents of scheduling_queue.go).
func TestPreemption_EventMeanwhile(t *testing.T) {
	b := newPriorityBed(t, "n1")
	called, release := b.slowDeletion()
	b.startScheduler("{}")
	b.addPods("low", "gpu.cleave.dev", 8, priority("low"), graceful)
	b.scheduled(8)
	b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
	<-called
	b.until("to be nominated", "high-0", func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == "n1" })
	// The pod's own claim changes, and an attempt with another pod shows that the scheduler has seen that.
	_, err := b.kube.ResourceV1().ResourceClaims(namespace).Patch(t.Context(), "high-0", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"changed":"meanwhile"}}}`), metav1.PatchOptions{})
	must(t, err)
	b.addPods("again", "gpu.cleave.dev", 1, priority("low"))
	b.waits("again-0")
	release()
	victim := b.ending(1)[0]
	b.gone(victim)
	b.free(victim)
	b.running("high-0")
	b.gpus()
}
