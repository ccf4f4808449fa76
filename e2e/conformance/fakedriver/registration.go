// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"errors"
	"path/filepath"

	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// GetInfo answers the kubelet.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	info := &registerapi.PluginInfo{
		Type: registerapi.DRAPlugin, Name: Name, Endpoint: d.Socket(),
		SupportedVersions: []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService},
	}
	if !d.has(V1) && !d.is(RegistersUnserved) {
		info.SupportedVersions = info.SupportedVersions[1:]
	}
	if d.has(Health) {
		info.SupportedVersions = append(info.SupportedVersions, healthpb.DRAResourceHealthService, healthpbv1alpha1.DRAResourceHealthService)
	}
	switch {
	case d.is(RegistersOtherName):
		info.Name = "other.example.com"
	case d.is(RegistersOtherType):
		info.Type = registerapi.DevicePlugin
	case d.is(RegistersUnknown):
		info.SupportedVersions = []string{"v9.DRAPlugin"}
	case d.is(EndpointRelative):
		info.Endpoint = "dra.sock"
	case d.is(EndpointMissing):
		info.Endpoint += ".missing"
	case d.is(EndpointFile):
		info.Endpoint = filepath.Join(d.dir, "records.json")
	case d.is(RegistersDifferently) && d.count("GetInfo") > 1:
		info.SupportedVersions = info.SupportedVersions[:1]
	}
	return info, nil
}

// NotifyRegistrationStatus takes the kubelet's answer.
func (d *Driver) NotifyRegistrationStatus(context.Context,
	*registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if d.is(RefusesSecondRegister) && d.count("NotifyRegistrationStatus") > 1 {
		return nil, errors.New("registered already")
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
