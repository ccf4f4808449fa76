// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func fakeAPIServer(claims ...*resourceapi.ResourceClaim) *fake.Clientset {
	var objects []runtime.Object
	for _, c := range claims {
		objects = append(objects, c)
	}
	return fake.NewClientset(objects...)
}

func claimsOf(uids ...types.UID) (claims []*resourceapi.ResourceClaim) {
	for _, uid := range uids {
		claims = append(claims, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c-" + string(uid), UID: uid}})
	}
	return claims
}

func TestClaims_Claim(t *testing.T) {
	claim := claimsOf("a")[0]
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "one"}}
	api := Claims{Client: fakeAPIServer(claim), Pods: NewPods(func(types.UID) bool { return true })}
	if got, err := api.Claim(t.Context(), "ns", "c-b"); got != nil || err != nil {
		t.Errorf("missing claim: got %v, %v, want nil, nil", got, err)
	}
	got, err := api.Claim(t.Context(), "ns", "c-a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claim, got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"one"}, api.Pods.Of("a")); diff != "" {
		t.Errorf("pods that are noted (-want +got):\n%s", diff)
	}
}

func TestClaims_ClaimByUID(t *testing.T) {
	client, claims := fakeAPIServer(), claimsOf("a", "b")
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "3"
	pages := map[string]*resourceapi.ResourceClaimList{
		"":  {ListMeta: metav1.ListMeta{Continue: "2"}, Items: []resourceapi.ResourceClaim{*claims[0]}},
		"3": {Items: []resourceapi.ResourceClaim{*claims[1]}},
	}
	var asked []string
	client.PrependReactor("list", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		from := a.(clienttesting.ListActionImpl).ListOptions.Continue
		asked = append(asked, a.GetNamespace()+from)
		if from == "2" {
			return true, nil, expired
		}
		return true, pages[from], nil
	})
	for uid, want := range map[types.UID]*resourceapi.ResourceClaim{"b": claims[1], "z": nil} {
		asked = nil
		got, err := Claims{Client: client}.ClaimByUID(t.Context(), uid)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("claim %s: %v (-want +got):\n%s", uid, err, diff)
		}
		if diff := cmp.Diff([]string{"", "2", "3"}, asked); diff != "" {
			t.Errorf("pages of all namespaces asked for (-want +got):\n%s", diff)
		}
	}
}

func TestClaims_APIServerError(t *testing.T) {
	client, refused := fakeAPIServer(), errors.New("connection refused")
	client.PrependReactor("*", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
	if _, err := (Claims{Client: client}).Claim(t.Context(), "ns", "c-a"); !errors.Is(err, refused) {
		t.Errorf("Claim: got %v, want %v", err, refused)
	}
	if _, err := (Claims{Client: client}).ClaimByUID(t.Context(), "a"); !errors.Is(err, refused) {
		t.Errorf("ClaimByUID: got %v, want %v", err, refused)
	}
}

// An API that is not served says nothing of its claims.
func TestClaims_NotServed(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (Claims{Client: client}).Claim(t.Context(), "ns", "a"); err == nil {
		t.Errorf("got %v and no error", got)
	}
}
