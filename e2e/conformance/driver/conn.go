// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
)

// Services are the names of the DRA services that a kubelet knows.
func Services() []string { return []string{drapb.DRAPluginService, drapbv1beta1.DRAPluginService} }

// Conn is a connection to the driver's endpoint, with the service that a kubelet would choose.
type Conn struct {
	drapb.DRAPluginClient
	// Versions are what the driver registered; empty where it was reached without a registration.
	Versions []string

	conn *grpc.ClientConn
}

// Connect finds the driver and connects to it.
func (d *Driver) Connect(ctx context.Context) (*Conn, error) {
	socket, versions := d.Socket, []string(nil)
	if d.RegistryDir != "" {
		found, err := d.Registrations(ctx)
		if err != nil && socket == "" {
			return nil, err
		}
		if err == nil {
			versions = found[0].Info.SupportedVersions
			if socket == "" {
				socket = found[0].Endpoint()
			}
		}
	}
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	service, err := choose(ctx, conn, versions)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Conn{DRAPluginClient: client(conn, service), Versions: versions, conn: conn}, nil
}

// choose takes the first of the registered services that a kubelet knows, as kubelets do
// (pkg/kubelet/cm/dra/plugin, validateSupportedServices), or without a registration the newest that is served.
func choose(ctx context.Context, conn *grpc.ClientConn, versions []string) (string, error) {
	for _, v := range versions {
		if slices.Contains(Services(), v) {
			return v, nil
		}
	}
	if len(versions) > 0 {
		return "", fmt.Errorf("choose a service of %q: a kubelet knows %q", versions, Services())
	}
	for _, v := range Services() {
		if served, err := serves(ctx, client(conn, v)); served || err != nil {
			return v, err
		}
	}
	return "", fmt.Errorf("none of %q is served", Services())
}

func client(conn *grpc.ClientConn, service string) drapb.DRAPluginClient {
	if service == drapbv1beta1.DRAPluginService {
		return drapbv1beta1.V1Beta1ClientWrapper{DRAPluginClient: drapbv1beta1.NewDRAPluginClient(conn)}
	}
	return drapb.NewDRAPluginClient(conn)
}

// Serves reports whether the driver answers calls of one of Services.
func (c *Conn) Serves(ctx context.Context, service string) (bool, error) {
	return serves(ctx, client(c.conn, service))
}

// serves makes a call that asks for nothing.
func serves(ctx context.Context, client drapb.DRAPluginClient) (bool, error) {
	_, err := client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("prepare no claims: %w", err)
	}
	return true, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }
