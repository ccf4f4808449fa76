package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const (
	driver    = "gpu.cleave.dev"
	namespace = "bench"
)

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

// makeClaim creates a claim and allocates a device to it, in place of the scheduler.
func makeClaim(ctx context.Context, client kubernetes.Interface, name, pool, device string, admin bool) (*drapb.Claim, error) {
	claims := client.ResourceV1().ResourceClaims(namespace)
	request := &resourceapi.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: pool, Device: device}
	if admin {
		request.AdminAccess, result.AdminAccess = &admin, &admin
	}
	claim, err := claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: request}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim %s: %w", name, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{result},
	}}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("allocate claim %s: %w", name, err)
	}
	return &drapb.Claim{Namespace: namespace, Name: name, Uid: string(claim.UID)}, nil
}

// prepare asks the plugin for one claim, as the kubelet does.
func prepare(ctx context.Context, plugin drapb.DRAPluginClient, claim *drapb.Claim) error {
	answer, err := plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("prepare claim %s: %w", claim.Name, err)
	}
	if one := answer.Claims[claim.Uid]; one == nil || one.Error != "" || len(one.Devices) != 1 {
		return fmt.Errorf("prepare claim %s: the plugin answers %v", claim.Name, one)
	}
	return nil
}

// unprepare gives one claim back.
func unprepare(ctx context.Context, plugin drapb.DRAPluginClient, claim *drapb.Claim) error {
	answer, err := plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", claim.Name, err)
	}
	if one := answer.Claims[claim.Uid]; one == nil || one.Error != "" {
		return fmt.Errorf("unprepare claim %s: the plugin answers %v", claim.Name, one)
	}
	return nil
}
