// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// HealthServices are the names of the health services that a kubelet knows.
func HealthServices() []string {
	return []string{healthpb.DRAResourceHealthService, healthpbv1alpha1.DRAResourceHealthService}
}

// HealthStream gives the driver's reports one by one, until its context ends.
type HealthStream func() ([]*healthpb.DeviceHealth, error)

// HealthOffered are the health services that the driver registered.
func (c *Conn) HealthOffered() []string {
	var offered []string
	for _, s := range HealthServices() {
		if slices.Contains(c.Versions, s) {
			offered = append(offered, s)
		}
	}
	return offered
}

// Health opens the stream of one of HealthServices.
func (c *Conn) Health(ctx context.Context, service string) (HealthStream, error) {
	if service == healthpbv1alpha1.DRAResourceHealthService {
		return alphaHealth(ctx, c.conn)
	}
	stream, err := healthpb.NewDRAResourceHealthClient(c.conn).NodeWatchResources(ctx, &healthpb.NodeWatchResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("open the health stream %s: %w", service, err)
	}
	return func() ([]*healthpb.DeviceHealth, error) {
		report, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("read the health stream %s: %w", service, err)
		}
		return report.Devices, nil
	}, nil
}

// alphaHealth reads the older stream. Its messages are the same on the wire (the two api.proto differ in their package alone).
func alphaHealth(ctx context.Context, conn *grpc.ClientConn) (HealthStream, error) {
	service := healthpbv1alpha1.DRAResourceHealthService
	client := healthpbv1alpha1.NewDRAResourceHealthClient(conn)
	stream, err := client.NodeWatchResources(ctx, &healthpbv1alpha1.NodeWatchResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("open the health stream %s: %w", service, err)
	}
	return func() ([]*healthpb.DeviceHealth, error) {
		report, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("read the health stream %s: %w", service, err)
		}
		data, err := proto.Marshal(report)
		if err != nil {
			return nil, fmt.Errorf("encode a health report: %w", err)
		}
		same := &healthpb.NodeWatchResourcesResponse{}
		if err := proto.Unmarshal(data, same); err != nil {
			return nil, fmt.Errorf("decode a health report: %w", err)
		}
		return same.Devices, nil
	}, nil
}
