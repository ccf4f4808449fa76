// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Calls of another version would get past inflight, which knows the requests of v1.
func TestKubelet_RegistersV1(t *testing.T) {
	b := newMetadataBed(t)
	sockets, err := filepath.Glob(filepath.Join(b.config.RegistryDir, "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets %v, %v, want one", sockets, err)
	}
	conn, err := grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for service, want := range map[string]bool{drav1.DRAPluginService: true, drav1beta1.DRAPluginService: false} {
		if got := slices.Contains(info.SupportedVersions, service); got != want {
			t.Errorf("registered %v, want %s: %t", info.SupportedVersions, service, want)
		}
	}
}
