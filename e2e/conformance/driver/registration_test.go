// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/google/go-cmp/cmp"
)

// registrar answers as a driver.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (r registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

// register serves a registration socket that was created at a time.
func register(t *testing.T, dir, file string, info *registerapi.PluginInfo, created time.Time) {
	t.Helper()
	path := filepath.Join(dir, file)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registrar{info: info})
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	if err := os.Chtimes(path, created, created); err != nil {
		t.Fatal(err)
	}
}

func TestRegistrations_NewestFirst(t *testing.T) {
	dir, err := os.MkdirTemp("", "c") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &Driver{Name: "device.example.com", RegistryDir: dir}
	if _, err := d.Registrations(t.Context()); !errors.Is(err, ErrNotRegistered) {
		t.Errorf("an empty directory gives %v", err)
	}
	now := time.Now()
	own := func(endpoint string) *registerapi.PluginInfo {
		return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: d.Name, Endpoint: endpoint}
	}
	register(t, dir, "a.sock", own("/middle.sock"), now.Add(-2*time.Minute))
	register(t, dir, "b.sock", own(""), now.Add(-time.Minute))
	register(t, dir, "c.sock", own("/oldest.sock"), now.Add(-3*time.Minute))
	register(t, dir, "d.sock", &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "other.example.com"}, now)
	register(t, dir, "e.sock", &registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: d.Name}, now)
	if err := os.WriteFile(filepath.Join(dir, "f.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := d.Registrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range found {
		got = append(got, r.Endpoint())
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "b.sock"), "/middle.sock", "/oldest.sock"}, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}
