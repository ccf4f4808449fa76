// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cleave-dra/cleave/e2e/conformance/driver"
)

var registrationCases = []Case{
	{
		Name:   "registration/socket",
		Rule:   "A socket in the kubelet's registry directory answers GetInfo with type DRAPlugin and the driver's name.",
		Source: "k8s.io/kubelet/pkg/apis/pluginregistration/v1; kubeletplugin.RegistrarDirectoryPath",
		run:    registrationSocket,
	},
	{
		Name:   "registration/versions",
		Rule:   "The supported versions name a DRA service that kubelets know, and each one that is named is served.",
		Source: "k8s.io/kubelet/pkg/apis/dra/v1.DRAPluginService; kubelet DRAPluginManager.ValidatePlugin",
		run:    registrationVersions,
	},
	{
		Name:   "registration/endpoint",
		Rule:   "The endpoint is the absolute path of a socket.",
		Source: "pluginregistration/v1 PluginInfo.endpoint",
		run:    registrationEndpoint,
	},
	{
		Name:   "registration/again",
		Rule:   "A kubelet that restarts registers the driver again and gets the same answer.",
		Source: "pluginregistration/v1 Registration; kubelet pluginmanager reconciler",
		run:    registrationAgain,
	},
}

func (b *bench) registrations(ctx context.Context) ([]driver.Registration, error) {
	if b.RegistryDir == "" {
		return nil, skipf("the suite was given no registry directory")
	}
	return b.driver.Registrations(ctx)
}

func registrationSocket(ctx context.Context, b *bench) (string, error) {
	found, err := b.registrations(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s answers", filepath.Base(found[0].Socket)), nil
}

func registrationVersions(ctx context.Context, b *bench) (string, error) {
	found, err := b.registrations(ctx)
	if err != nil {
		return "", err
	}
	versions := found[0].Info.SupportedVersions
	conn, err := b.connect(ctx)
	if err != nil {
		return "", err
	}
	for _, service := range driver.Services() {
		if !slices.Contains(versions, service) {
			continue
		}
		served, err := conn.Serves(ctx, service)
		if err != nil {
			return "", err
		}
		if !served {
			return "", fmt.Errorf("%s is registered and not served", service)
		}
	}
	return fmt.Sprintf("%q", versions), nil
}

func registrationEndpoint(ctx context.Context, b *bench) (string, error) {
	found, err := b.registrations(ctx)
	if err != nil {
		return "", err
	}
	for _, r := range found {
		if !filepath.IsAbs(r.Endpoint()) {
			return "", fmt.Errorf("%s gives the endpoint %q, want an absolute path", r.Socket, r.Endpoint())
		}
		info, err := os.Stat(r.Endpoint())
		if err != nil {
			return "", fmt.Errorf("look at the endpoint of %s: %w", r.Socket, err)
		}
		if info.Mode().Type() != os.ModeSocket {
			return "", fmt.Errorf("%s gives the endpoint %s, which is no socket", r.Socket, r.Endpoint())
		}
	}
	return found[0].Endpoint(), nil
}

func registrationAgain(ctx context.Context, b *bench) (string, error) {
	found, err := b.registrations(ctx)
	if err != nil {
		return "", err
	}
	for range 2 {
		info, err := found[0].Repeat(ctx)
		if err != nil {
			return "", err
		}
		if !proto.Equal(info, found[0].Info) {
			return "", fmt.Errorf("GetInfo gave %v and gives %v", found[0].Info, info)
		}
	}
	return "three times the same", nil
}
