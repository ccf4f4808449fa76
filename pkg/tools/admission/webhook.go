// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"unicode"

	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	strictjson "sigs.k8s.io/json"
)

// maxReview bounds a request in bytes; the API server takes objects of 3 MiB (MaxRequestBodyBytes), and sends the old one,
// too.
const maxReview = 8 << 20

// ServeHTTP answers an AdmissionReview (admission.k8s.io/v1) about objects of resource.k8s.io/v1; a webhook configuration
// with matchPolicy Equivalent has the API server convert those of other versions.
func (r Rules) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	review, err := readReview(w, req)
	if err != nil {
		klog.FromContext(req.Context()).Error(err, "Could not read an admission review", "from", req.RemoteAddr)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: r.review(review.Request)}
	data, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	asked := review.Request
	klog.FromContext(req.Context()).V(2).Info("Reviewed", "kind", printable(asked.Kind.Kind), "namespace", printable(asked.Namespace),
		"name", printable(asked.Name), "user", printable(asked.UserInfo.Username), "allowed", answer.Response.Allowed)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the client is gone
}

// printable is a text for the log, without what a terminal would act on: who asks need not be the API server, which checks names.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func readReview(w http.ResponseWriter, req *http.Request) (*admissionv1.AdmissionReview, error) {
	if req.Method != http.MethodPost {
		return nil, fmt.Errorf("method %s: want POST", req.Method)
	}
	if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, fmt.Errorf("content type %q: want application/json", req.Header.Get("Content-Type"))
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReview))
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(data, review); err != nil {
		return nil, fmt.Errorf("decode the AdmissionReview: %w", err)
	}
	if review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" {
		return nil, fmt.Errorf("%q of %q: want AdmissionReview of %s", review.Kind, review.APIVersion, admissionv1.SchemeGroupVersion)
	}
	if review.Request == nil {
		return nil, errors.New("the AdmissionReview has no request")
	}
	return review, nil
}

// review decides. An object of which a controller only updates the rest, such as its finalizers, is let through, even one that is not
// decoded: nobody could remove it else.
func (r Rules) review(req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	answer := &admissionv1.AdmissionResponse{UID: req.UID, Allowed: true}
	if req.Operation == admissionv1.Update && sameSpec(req.OldObject.Raw, req.Object.Raw) {
		return answer
	}
	object, err := decodeObject(req, req.Object.Raw)
	if err != nil {
		return refuse(answer, metav1.StatusReasonBadRequest, http.StatusBadRequest, err.Error())
	}
	if object == nil {
		return answer
	}
	if errs := r.Check(object); len(errs) > 0 {
		return refuse(answer, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity, errs.ToAggregate().Error())
	}
	return answer
}

// sameSpec reports whether an update leaves an object's spec as it is. The API server writes both alike.
func sameSpec(before, after []byte) bool {
	var b, a struct {
		Spec any `json:"spec"`
	}
	return strictjson.UnmarshalCaseSensitivePreserveInts(before, &b) == nil &&
		strictjson.UnmarshalCaseSensitivePreserveInts(after, &a) == nil && reflect.DeepEqual(b, a)
}

func refuse(answer *admissionv1.AdmissionResponse, reason metav1.StatusReason, code int32, message string) *admissionv1.AdmissionResponse {
	answer.Allowed = false
	answer.Result = &metav1.Status{Status: metav1.StatusFailure, Reason: reason, Code: code, Message: message}
	return answer
}

// decodeObject reads an object of a kind that is checked; nil for others, and where there is none.
func decodeObject(req *admissionv1.AdmissionRequest, raw []byte) (runtime.Object, error) {
	object := NewObject(req.Kind.Kind)
	if req.Kind.Group != resourceapi.GroupName || len(raw) == 0 || object == nil {
		return nil, nil //nolint:nilnil // nothing of ours is an ordinary answer
	}
	if req.Kind.Version != resourceapi.SchemeGroupVersion.Version {
		return nil, fmt.Errorf("version %s of %s: have the webhook configuration ask with version %s and matchPolicy Equivalent",
			req.Kind.Version, req.Kind.Kind, resourceapi.SchemeGroupVersion.Version)
	}
	if err := CheckQuantities(raw, object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", req.Kind.Kind, err)
	}
	if err := json.Unmarshal(raw, object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", req.Kind.Kind, err)
	}
	return object, nil
}

// NewObject is an empty object of a kind of resource.k8s.io/v1 that is checked; nil for others.
func NewObject(kind string) runtime.Object {
	switch kind {
	case "ResourceClaim":
		return &resourceapi.ResourceClaim{}
	case "ResourceClaimTemplate":
		return &resourceapi.ResourceClaimTemplate{}
	case "DeviceClass":
		return &resourceapi.DeviceClass{}
	default:
		return nil
	}
}
