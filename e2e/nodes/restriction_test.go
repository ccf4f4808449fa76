// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// stolen is a client with the token that a pod has mounted, as somebody on its node can read it.
func (p place) stolen(t *testing.T, pod corev1.Pod) kubernetes.Interface {
	t.Helper()
	var token []byte
	must(t, p.Inside(func() error { // the volume is mounted there alone
		pattern := filepath.Join(env.cluster.KubeletDir(), "pods", string(pod.UID), "volumes/kubernetes.io~projected/*/token")
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) != 1 {
			return fmt.Errorf("find the token of pod %s: %v, %w", pod.Name, found, err)
		}
		token, err = os.ReadFile(found[0])
		return err
	}))
	admin, err := env.cluster.RESTConfig()
	must(t, err)
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = string(token)
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// nodeRestriction has the plugin of the first node, with the token of its pod, reach for what is of the second. What else the policy
// refuses, TestRelease_Lifecycle of e2e/chart tells.
func nodeRestriction(t *testing.T, ctx context.Context) {
	home, other := env.places[0], env.places[1]
	plugins, err := podsOf(ctx, "plugin")
	must(t, err)
	here, there := home.stolen(t, plugins[home.Name()]), other.stolen(t, plugins[other.Name()])
	published, _, err := other.slices(ctx)
	must(t, err)
	added := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: published[len(published)-1].Spec}
	create := func(c kubernetes.Interface) error {
		_, err := c.ResourceV1().ResourceSlices().Create(ctx, added, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	says := fmt.Sprintf("this ResourceSlice is of node %q, and the plugin of node %q may write those of its own", other.Name(), home.Name())
	if err := create(here); err == nil || !strings.Contains(err.Error(), "cleave-resourceslices") || !strings.Contains(err.Error(), says) {
		t.Errorf("a slice of another node: got %v, want it refused with %q", err, says)
	}
	if err := create(there); err != nil {
		t.Errorf("a slice by the plugin of the node itself: %v", err)
	}
	if err := here.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of all slices at once: got %v, want it forbidden", err)
	}
	claimRestriction(t, ctx, here, there, other)
}

// claimRestriction has a plugin write the status of a claim that is allocated on another node.
func claimRestriction(t *testing.T, ctx context.Context, here, there kubernetes.Interface, other place) {
	claims, err := env.kube.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{})
	must(t, err)
	var claim *resourceapi.ResourceClaim
	for i := range claims.Items {
		if a := claims.Items[i].Status.Allocation; a != nil && a.Devices.Results[0].Pool == other.Name() && a.Devices.Results[0].ShareID == nil {
			claim = &claims.Items[i]
		}
	}
	if claim == nil {
		t.Fatalf("no claim is allocated on node %s", other.Name())
	}
	result := claim.Status.Allocation.Devices.Results[0]
	patch := func(status any) []byte {
		data, err := json.Marshal(map[string]any{"status": status})
		must(t, err)
		return data
	}
	device := map[string]any{"driver": workload.Driver, "pool": result.Pool, "device": result.Device}
	write := func(c kubernetes.Interface, data []byte) error {
		_, err := c.ResourceV1().ResourceClaims(demo).Patch(ctx, claim.Name, types.MergePatchType, data,
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	if err := write(there, patch(map[string]any{"devices": []any{device}})); err != nil {
		t.Errorf("status of a device by the plugin of its node: %v", err)
	}
	// The API server checks these rights with the fields, before the policy, and calls the object invalid.
	const driverRight, bindingRight = `requires resource="resourceclaims/driver"`, `requires resource="resourceclaims/binding"`
	for what, attempt := range map[string]struct {
		status map[string]any
		says   string
	}{
		"status of a device":   {map[string]any{"devices": []any{device}}, driverRight},
		"no status":            {map[string]any{"devices": nil}, driverRight},
		"nobody uses it":       {map[string]any{"reservedFor": nil}, bindingRight},
		"nothing is allocated": {map[string]any{"allocation": nil, "reservedFor": nil, "devices": nil}, bindingRight},
	} {
		if err := write(here, patch(attempt.status)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), attempt.says) {
			t.Errorf("%s, of a claim on another node: got %v, want it refused as it %s", what, err, attempt.says)
		}
	}
	if err := here.ResourceV1().ResourceClaims(demo).Delete(ctx, claim.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); !apierrors.IsForbidden(err) {
		t.Errorf("delete of a claim on another node: got %v, want it forbidden", err)
	}
}
