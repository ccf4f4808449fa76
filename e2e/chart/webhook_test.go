// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/cleave-dra/cleave/api/parameters"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// The webhook, by itself, says of parameters what the plugin says. It is on the network of the host, as nothing in this
// cluster makes Services work.
func TestWebhook_SameErrorsAsPlugin(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	values := env.values(true) + `
nodes: {match: [{key: no-plugin-here, operator: Exists}]}
admission: {claims: {enabled: false}}
webhook: {enabled: true, replicas: 1, failurePolicy: Fail, timeoutSeconds: 30, tolerations: [{operator: Exists}], hostNetwork: true,
  port: 9443}
`
	t.Cleanup(func() {
		helmOn(t, "", "uninstall", "cleave", "--ignore-not-found", "--wait", "--timeout", helmTimeout)
		gone, err := env.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(context.Background(), "cleave-webhook", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("after removal there is still %v: %v", gone, err)
		}
	})
	helmOn(t, values, "install", "cleave", chartDir, "--create-namespace")
	onlyPod(t, ctx, "webhook", ready)
	for _, text := range parameters {
		raw := withType(t, text)
		spec := ask("mine.example.com", nil) // parameters of either tier may fit it
		spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(workload.Driver, raw)}}
		_, want := api.Decode(workload.Driver, raw)
		got := submit(t, ctx, spec)
		if (want == nil) != (got == nil) || want != nil && !strings.Contains(got.Error(), want.Error()) {
			t.Errorf("%s: the webhook says %v, the plugin %v", raw, got, want)
		}
	}
	two := func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 }
	if err := submit(t, ctx, ask("mps.cleave.dev", two)); err == nil || !strings.Contains(err.Error(), "one MPS server only") {
		t.Errorf("two shares by MPS: got %v", err)
	}
	// An upgrade keeps the certificate: the API server would trust no other until it reads it.
	before := certificate(ctx, t)
	helmOn(t, strings.Replace(values, "port: 9443", "port: 9443, logVerbosity: 2", 1), "upgrade", "cleave", chartDir)
	if after := certificate(ctx, t); before != after {
		t.Error("an upgrade made another certificate")
	}
}

// certificate is the authority that the API server trusts.
func certificate(ctx context.Context, t *testing.T) string {
	t.Helper()
	c, err := env.kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, "cleave-webhook", metav1.GetOptions{})
	must(t, err)
	return string(c.Webhooks[0].ClientConfig.CABundle)
}
