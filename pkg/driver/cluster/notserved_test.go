// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

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
