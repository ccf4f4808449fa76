// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
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
	api := Claims{Client: fakeAPIServer(claimsOf("a")...)}
	if got, err := api.Claim(t.Context(), "ns", "c-b"); got != nil || err != nil {
		t.Errorf("missing claim: got %v, %v, want nil, nil", got, err)
	}
	got, err := api.Claim(t.Context(), "ns", "c-a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claimsOf("a")[0], got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
}

func TestClaims_ClaimByUID(t *testing.T) {
	claims := claimsOf("a", "b", "c")
	claims[1].Namespace = "elsewhere"
	api := Claims{Client: fakeAPIServer(claims...)}
	got, err := api.ClaimByUID(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claims[1], got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
	if got, err := api.ClaimByUID(t.Context(), "z"); got != nil || err != nil {
		t.Errorf("missing claim: got %v, %v, want nil, nil", got, err)
	}
}

func TestClaims_ClaimByUIDPages(t *testing.T) {
	client := fakeAPIServer()
	pages := map[string]*resourceapi.ResourceClaimList{"": {}, "2": {}}
	pages[""].Continue = "2"
	pages[""].Items = []resourceapi.ResourceClaim{*claimsOf("a")[0]}
	pages["2"].Items = []resourceapi.ResourceClaim{*claimsOf("b")[0]}
	var asked []string
	client.PrependReactor("list", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		from := a.(clienttesting.ListActionImpl).ListOptions.Continue
		asked = append(asked, from)
		return true, pages[from], nil
	})
	got, err := Claims{Client: client}.ClaimByUID(t.Context(), "b")
	if err != nil || got == nil || got.UID != "b" {
		t.Errorf("got %v, %v, want claim b", got, err)
	}
	if diff := cmp.Diff([]string{"", "2"}, asked); diff != "" {
		t.Errorf("pages asked for (-want +got):\n%s", diff)
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
