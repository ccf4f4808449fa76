// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// reviewOf asks about a claim.
func reviewOf(t testing.TB, operation admissionv1.Operation, now, before *resourceapi.ResourceClaim) *admissionv1.AdmissionReview {
	t.Helper()
	raw := func(c *resourceapi.ResourceClaim) runtime.RawExtension {
		if c == nil {
			return runtime.RawExtension{}
		}
		return runtime.RawExtension{Raw: mustJSON(t, c)}
	}
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Operation: operation, Kind: metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
			Object: raw(now), OldObject: raw(before),
		},
	}
}

// post sends bytes as the API server does.
func post(data []byte, contentType string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/validate", bytes.NewReader(data))
	req.Header.Set("Content-Type", contentType)
	w := httptest.NewRecorder()
	DefaultRules().ServeHTTP(w, req)
	return w
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func answerTo(t testing.TB, review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	t.Helper()
	w := post(mustJSON(t, review), "application/json; charset=utf-8")
	if w.Code != http.StatusOK {
		t.Fatalf("got %d: %s", w.Code, w.Body)
	}
	answer := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
		t.Fatal(err)
	}
	if answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" || answer.Response == nil || answer.Response.UID != review.Request.UID {
		t.Fatalf("got %s, want an answer to the request", w.Body)
	}
	return answer.Response
}

func TestWebhook_Review(t *testing.T) {
	right, wrong := claimYAML(t, `{}`), claimYAML(t, `{`+config+`mps: {threads: 5}}}}]}`)
	worse := claimYAML(t, `{`+config+`mps: {threads: 5, more: 6}}}}]}`)
	pod := reviewOf(t, admissionv1.Create, wrong, nil)
	pod.Request.Kind = metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}
	slice := reviewOf(t, admissionv1.Create, wrong, nil)
	slice.Request.Kind.Kind = "ResourceSlice"
	older := reviewOf(t, admissionv1.Create, right, nil)
	older.Request.Kind.Version = "v1beta1"
	broken := reviewOf(t, admissionv1.Create, right, nil)
	broken.Request.Object.Raw = []byte(`{"spec": []}`)
	endless := reviewOf(t, admissionv1.Create, right, nil)
	endless.Request.Object.Raw = []byte(`{"metadata":{"uid":"00e-0001-4a"},"spec":{"devices":{"requests":[{"exactly":{"capacity":{"requests":{"memory":"1e999999999"}}}}]}}}`)
	released := reviewOf(t, admissionv1.Update, right, nil)
	released.Request.Object.Raw = endless.Request.Object.Raw
	released.Request.OldObject.Raw = bytes.Replace(endless.Request.Object.Raw, []byte(`"uid"`), []byte(`"finalizers":["f"],"uid"`), 1)
	labeled := claimYAML(t, `{}`)
	labeled.Labels = map[string]string{"app.kubernetes.io/version": "83e6123"}
	tests := map[string]struct {
		review *admissionv1.AdmissionReview
		want   string // what is said; empty: let through
	}{
		"right":                     {reviewOf(t, admissionv1.Create, right, nil), ""},
		"wrong":                     {reviewOf(t, admissionv1.Create, wrong, nil), `spec.devices.config[0].opaque.parameters: Invalid value: parameters: unknown field "mps.threads"`},
		"made wrong":                {reviewOf(t, admissionv1.Update, wrong, right), `"mps.threads"`},
		"as wrong as before":        {reviewOf(t, admissionv1.Update, wrong, wrong), ""}, // its finalizers must be removable
		"made worse":                {reviewOf(t, admissionv1.Update, worse, wrong), `"mps.more"`},
		"deleted":                   {reviewOf(t, admissionv1.Delete, nil, wrong), ""},
		"another group's":           {pod, ""},
		"another kind":              {slice, ""},
		"an older version":          {older, "matchPolicy Equivalent"},
		"a number without end":      {endless, "1e999999999"},
		"as endless as before":      {released, ""},
		"a label like a number":     {reviewOf(t, admissionv1.Create, labeled, nil), ""},
		"with one as before":        {reviewOf(t, admissionv1.Update, labeled, labeled), ""},
		"an object that is not one": {broken, "decode ResourceClaim"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := answerTo(t, tt.review)
			if got.Allowed != (tt.want == "") {
				t.Errorf("got %+v, want allowed %t", got, tt.want == "")
			}
			if tt.want != "" && (got.Result == nil || !strings.Contains(got.Result.Message, tt.want)) {
				t.Errorf("got %+v, want %q said", got.Result, tt.want)
			}
		})
	}
}

func TestWebhook_InvalidRequest(t *testing.T) {
	for name, tt := range map[string]struct{ data, contentType, want string }{
		"nothing":         {"", "application/json", "decode"},
		"protobuf":        {"{}", "application/vnd.kubernetes.protobuf", "application/json"},
		"no content type": {"{}", "", "application/json"},
		"another kind":    {`{"apiVersion":"v1","kind":"Pod"}`, "application/json", "want AdmissionReview"},
		"older":           {`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{}}`, "application/json", "v1beta1"},
		"no request":      {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, "application/json", "no request"},
		"too long":        {`{"x":"` + strings.Repeat("x", maxReview) + `"}`, "application/json", "too large"},
	} {
		if w := post([]byte(tt.data), tt.contentType); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s: got %d %s, want 400 and %q", name, w.Code, w.Body, tt.want)
		}
	}
	w := httptest.NewRecorder()
	DefaultRules().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/validate", nil))
	if w.Code != http.StatusBadRequest {
		t.Errorf("GET: got %d", w.Code)
	}
}

func FuzzReview(f *testing.F) {
	for _, c := range []*resourceapi.ResourceClaim{claimYAML(f, `{}`), claimYAML(f, `{`+config+`mps: {threads: 5}}}}]}`), claimYAML(f, `{`+request+`mps.cleave.dev, count: 2}}]}`)} {
		data, err := json.Marshal(reviewOf(f, admissionv1.Update, c, c))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		w := post(data, "application/json")
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest {
			t.Errorf("%q: got %d", data, w.Code)
		}
		if w.Code == http.StatusOK && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: got %s", data, w.Body)
		}
	})
}
