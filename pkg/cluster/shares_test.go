// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestNoShares(t *testing.T) {
	for release, shared := range map[string]bool{
		"v1.34.4": false, "v1.35.4": false, "v1.35.2-eks-1234": false,
		"v1.36.0": true, "v1.36.0-alpha.1": true, "v1.36.3+k3s1": true, "v1.37.1": true, "v2.0.0": true,
	} {
		err := noShares(version.MustParseGeneric(release))
		if shared != (err == nil) {
			t.Errorf("%s: got %v, want shares to be offered: %t", release, err, shared)
		}
		if err != nil && !strings.Contains(err.Error(), strings.TrimPrefix(release, "v")[:4]) {
			t.Errorf("%s: error %q does not name the release", release, err)
		}
	}
}

// apiOf is the client of an API server that answers as a handler does.
func apiOf(t *testing.T, handler http.HandlerFunc) rest.Interface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client.Discovery().RESTClient()
}

func TestSharesUnsupported_WaitsForTheAPIServer(t *testing.T) {
	var calls atomic.Int32
	api := apiOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch calls.Add(1) {
		case 1:
			http.Error(w, "starting", http.StatusInternalServerError)
		case 2:
			fmt.Fprint(w, `{"gitVersion":"not a release"}`)
		case 3:
			fmt.Fprint(w, `not JSON`)
		default:
			if r.URL.Path != "/version" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			fmt.Fprint(w, `{"major":"1","minor":"35+","gitVersion":"v1.35.4-gke.1"}`)
		}
	})
	why, err := SharesUnsupported(t.Context(), api, time.Millisecond)
	if err != nil || why == nil || !strings.Contains(why.Error(), "1.35.4") {
		t.Errorf("got %v and %v, want a reason that names 1.35.4", why, err)
	}
	if n := calls.Load(); n != 4 {
		t.Errorf("asked %d times, want 4", n)
	}
}

func TestSharesUnsupported_ContextCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	api := apiOf(t, func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		http.Error(w, "no", http.StatusServiceUnavailable)
	})
	if _, err := SharesUnsupported(ctx, api, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
