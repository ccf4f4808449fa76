// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

// health serves the health of the devices.
type health struct {
	healthpb.UnsafeDRAResourceHealthServer
	driver *Driver
}

// NodeWatchResources reports at once and then at each change.
func (h *health) NodeWatchResources(_ *healthpb.NodeWatchResourcesRequest,
	stream grpc.ServerStreamingServer[healthpb.NodeWatchResourcesResponse]) error {
	if h.driver.is(HealthOnce) && h.driver.count("health") > 1 {
		return errors.New("a kubelet is connected already")
	}
	if h.driver.is(HealthSilent) {
		<-stream.Context().Done()
		return nil
	}
	for {
		h.driver.mu.Lock()
		changed := h.driver.changed
		h.driver.mu.Unlock()
		if err := stream.Send(h.driver.report()); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// report is the health of all devices.
func (d *Driver) report() *healthpb.NodeWatchResourcesResponse {
	report := &healthpb.NodeWatchResourcesResponse{}
	for _, s := range (publisher{d}).slices() {
		for _, device := range s.Devices {
			one := &healthpb.DeviceHealth{
				Device:          &healthpb.DeviceIdentifier{PoolName: Node, DeviceName: device.Name},
				Health:          healthpb.HealthStatus_HEALTHY,
				LastUpdatedTime: time.Now().Unix(),
			}
			if d.unhealthy(device.Name) && !d.is(HealthConstant) {
				one.Health, one.Message = healthpb.HealthStatus_UNHEALTHY, "damaged"
			}
			report.Devices = append(report.Devices, one)
		}
	}
	first := report.Devices[0]
	switch {
	case d.is(HealthOther):
		first.Device.DeviceName += "-other"
	case d.is(HealthTwice):
		report.Devices = append(report.Devices, first)
	case d.is(HealthFuture):
		first.LastUpdatedTime += 3600
	case d.is(HealthValue):
		first.Health = 7
	case d.is(HealthLong):
		first.Message = strings.Repeat("x", 1025)
	case d.is(HealthPartial):
		report.Devices = report.Devices[1:]
	}
	return report
}

// healthV1alpha1 serves the older service, whose messages are the same on the wire.
type healthV1alpha1 struct {
	healthpbv1alpha1.UnsafeDRAResourceHealthServer
	health health
}

// NodeWatchResources reports once.
func (h *healthV1alpha1) NodeWatchResources(_ *healthpbv1alpha1.NodeWatchResourcesRequest,
	stream grpc.ServerStreamingServer[healthpbv1alpha1.NodeWatchResourcesResponse]) error {
	data, err := proto.Marshal(h.health.driver.report())
	if err != nil {
		return err
	}
	report := &healthpbv1alpha1.NodeWatchResourcesResponse{}
	if err := proto.Unmarshal(data, report); err != nil {
		return err
	}
	if err := stream.Send(report); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}
