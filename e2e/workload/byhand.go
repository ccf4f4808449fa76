// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Driver is the name of Cleave's driver, and of its DeviceClass for whole GPUs.
const Driver = "gpu.cleave.dev"

// OneGPU is the allocation of one GPU of Cleave's, with or without admin access.
func OneGPU(pool, device string, admin bool) resourceapi.DeviceAllocationResult {
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: Driver, Pool: pool, Device: device}
	if admin {
		result.AdminAccess = &admin
	}
	return resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}
}

// OneShare is the allocation of a share of a shared GPU of Cleave's, with amounts by the name of the capacity.
func OneShare(pool, device string, amounts map[string]int64) resourceapi.DeviceAllocationResult {
	id := uuid.NewUUID()
	result := resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: Driver, Pool: pool, Device: device, ShareID: &id,
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{},
	}
	for name, n := range amounts {
		result.ConsumedCapacity[resourceapi.QualifiedName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}}
}

// Allocate creates a claim and allocates devices to it, in place of the scheduler. The claim requests one device of
// Cleave's class for each request that the allocation names.
func (c Client) Allocate(ctx context.Context, namespace, name string, devices resourceapi.DeviceAllocationResult) (*drapb.Claim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, r := range devices.Results {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: r.Request, Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, AdminAccess: r.AdminAccess,
			},
		})
	}
	claims := c.Kube.ResourceV1().ResourceClaims(namespace)
	claim, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim %s: %w", name, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: devices}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("allocate claim %s: %w", name, err)
	}
	return &drapb.Claim{Namespace: namespace, Name: name, Uid: string(claim.UID)}, nil
}

// LabelNode sets a label of a node, or removes it for nil.
func (c Client) LabelNode(ctx context.Context, node, key string, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]*string{key: value}}})
	if err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	if _, err := c.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// Plugin calls a plugin's socket as the kubelet does.
type Plugin struct {
	API  drapb.DRAPluginClient
	conn *grpc.ClientConn
}

// Dial makes a Plugin; it connects with the first call, and again after the plugin restarts.
func Dial(socket string) (*Plugin, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the plugin: %w", err)
	}
	return &Plugin{drapb.NewDRAPluginClient(conn), conn}, nil
}

// Close ends the connection.
func (p *Plugin) Close() error { return p.conn.Close() }

// Prepare asks for one claim and returns its devices.
func (p *Plugin) Prepare(ctx context.Context, claim *drapb.Claim) ([]*drapb.Device, error) {
	answer, err := p.API.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return nil, fmt.Errorf("prepare claim %s: %w", claim.Name, err)
	}
	one := answer.Claims[claim.Uid]
	if one == nil {
		return nil, fmt.Errorf("prepare claim %s: the plugin does not answer for it", claim.Name)
	}
	if one.Error != "" {
		return nil, fmt.Errorf("prepare claim %s: %w", claim.Name, errors.New(one.Error))
	}
	return one.Devices, nil
}

// Unprepare gives one claim back.
func (p *Plugin) Unprepare(ctx context.Context, claim *drapb.Claim) error {
	answer, err := p.API.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", claim.Name, err)
	}
	one := answer.Claims[claim.Uid]
	if one == nil {
		return fmt.Errorf("unprepare claim %s: the plugin does not answer for it", claim.Name)
	}
	if one.Error != "" {
		return fmt.Errorf("unprepare claim %s: %w", claim.Name, errors.New(one.Error))
	}
	return nil
}
