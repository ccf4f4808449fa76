// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const namespace = "bench"

// makeNamespace allows claims with admin access: hundreds of claims fit on eight GPUs only with it.
func makeNamespace(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return nil
}

func (b *bench) allocate(ctx context.Context, name string, devices resourceapi.DeviceAllocationResult) (*drapb.Claim, error) {
	return workload.Client{Kube: b.client}.Allocate(ctx, namespace, name, devices)
}

func (b *bench) makeClaim(ctx context.Context, name, device string, admin bool) (*drapb.Claim, error) {
	return b.allocate(ctx, name, workload.OneGPU(b.cluster.NodeName(), device, admin))
}

// prepare asks the plugin for one claim, as the kubelet does.
func prepare(ctx context.Context, plugin *workload.Plugin, claim *drapb.Claim) error {
	devices, err := plugin.Prepare(ctx, claim)
	if err == nil && len(devices) != 1 {
		err = fmt.Errorf("prepare claim %s: the plugin answers %v", claim.Name, devices)
	}
	return err
}

// unprepare gives one claim back.
func unprepare(ctx context.Context, plugin *workload.Plugin, claim *drapb.Claim) error {
	return plugin.Unprepare(ctx, claim)
}
