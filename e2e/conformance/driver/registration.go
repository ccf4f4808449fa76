// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// askTimeout bounds GetInfo, as the kubelet does (pkg/kubelet/pluginmanager/operationexecutor, dialTimeoutDuration).
const askTimeout = 10 * time.Second

// ErrNotRegistered is wrapped when no socket of the registry directory belongs to the driver.
var ErrNotRegistered = errors.New("no registration socket")

// Driver is the driver under test, with the directories of its node.
type Driver struct {
	// Name of the driver, as in ResourceSlices.
	Name string
	// RegistryDir is the kubelet's plugins_registry.
	RegistryDir string
	// Socket replaces the endpoint of the registration, if it is not empty.
	Socket string
	// CDIDirs are the directories that the container runtime reads.
	CDIDirs []string
}

// Registration is one socket by which the driver registers. A rolling update has two for a moment.
type Registration struct {
	Socket string
	Info   *registerapi.PluginInfo
}

// Endpoint is where the driver serves. An empty one means the registration socket, as it does for the kubelet.
func (r Registration) Endpoint() string {
	if r.Info.Endpoint == "" {
		return r.Socket
	}
	return r.Info.Endpoint
}

// Registrations are the sockets of the registry directory that answer as this driver, the newest first: the kubelet calls
// the one that registered last (DRAPluginManager.get). Sockets of others are passed over.
func (d *Driver) Registrations(ctx context.Context) ([]Registration, error) {
	entries, err := os.ReadDir(d.RegistryDir)
	if err != nil {
		return nil, fmt.Errorf("list the kubelet's registry directory: %w", err)
	}
	slices.SortStableFunc(entries, func(a, b os.DirEntry) int { return created(b).Compare(created(a)) })
	var found []Registration
	var silent []error
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		r := Registration{Socket: filepath.Join(d.RegistryDir, e.Name())}
		if r.Info, err = r.ask(ctx); err != nil {
			silent = append(silent, err) // perhaps what a killed process left
			continue
		}
		if r.Info.Type == registerapi.DRAPlugin && r.Info.Name == d.Name {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find driver %s in %s: %w: %w", d.Name, d.RegistryDir, ErrNotRegistered, errors.Join(silent...))
	}
	return found, nil
}

// created is when a socket was made; the zero time if it is gone by now.
func created(e os.DirEntry) time.Time {
	info, err := e.Info()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

func (r Registration) ask(ctx context.Context) (*registerapi.PluginInfo, error) {
	var info *registerapi.PluginInfo
	err := r.call(ctx, func(ctx context.Context, client registerapi.RegistrationClient) (err error) {
		info, err = client.GetInfo(ctx, &registerapi.InfoRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("call GetInfo of %s: %w", r.Socket, err)
	}
	return info, nil
}

// Repeat registers once more, as a kubelet does that restarted: GetInfo, then NotifyRegistrationStatus.
func (r Registration) Repeat(ctx context.Context) (*registerapi.PluginInfo, error) {
	info, err := r.ask(ctx)
	if err != nil {
		return nil, err
	}
	err = r.call(ctx, func(ctx context.Context, client registerapi.RegistrationClient) error {
		_, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("call NotifyRegistrationStatus of %s: %w", r.Socket, err)
	}
	return info, nil
}

func (r Registration) call(ctx context.Context, do func(context.Context, registerapi.RegistrationClient) error) error {
	conn, err := dial(r.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return do(ctx, registerapi.NewRegistrationClient(conn))
}

// dial connects with the first call.
func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", socket, err)
	}
	return conn, nil
}
