// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// claimMetadata restores device metadata that something else deletes, as claimSpecs does for the claims' own specs. The kubelet has the
// names of both from Prepare, which it does not repeat for a container that restarts in its pod.
type claimMetadata struct {
	kubelet *kubelet
	client  kubernetes.Interface
	// inventory returns the node's GPUs.
	inventory func() *gpu.Node
}

// Has reports whether a claim's metadata is complete, or is being written by a call in flight: the helper writes it after the record.
func (m claimMetadata) Has(r *records.Record) bool {
	prepares := func(c *call) bool { return slices.Contains(c.prepares, r.Claim.UID) }
	return !m.lacks(r) || slices.ContainsFunc(m.kubelet.inflight.now(), prepares)
}

// lacks reports whether a file of a claim's metadata is certainly missing. One whose writer was killed is empty.
func (m claimMetadata) lacks(r *records.Record) bool {
	c := m.kubelet.config
	return slices.ContainsFunc(r.Devices, func(d records.Device) bool {
		request := resourceclaim.BaseRequestRef(d.Request)
		spec := filepath.Join(c.CDIDir, r.Driver+metadataInfix+string(r.Claim.UID)+"_"+request+".json")
		file := filepath.Join(c.PluginsDir, r.Driver, metadataDir, r.Claim.Namespace+"_"+r.Claim.Name, request, "metadata.json")
		info, err := os.Stat(file)
		return absent(spec) != nil || errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0
	})
}

// Remove removes the CDI specs of a claim without a record; sweep removes the rest.
func (m claimMetadata) Remove(driver string, uid types.UID) error {
	specs, err := m.kubelet.metadata.find(filepath.Join(m.kubelet.config.CDIDir, driver+metadataInfix+string(uid)+"_*.json"))
	return errors.Join(err, removeAll(specs))
}

// Restore writes a claim's metadata again. The helper writes it only as part of answering the kubelet, so a helper that no kubelet
// knows is asked to prepare the claim, and answers from the record.
func (m claimMetadata) Restore(ctx context.Context, r *records.Record) error {
	c := m.kubelet.config
	if err := m.kubelet.metadata.open(c, r.Driver); err != nil {
		return err
	}
	listener := bufconn.Listen(records.MaxSize)
	var failed atomic.Bool
	helper, err := kubeletplugin.Start(ctx, recorded{devices: toKubelet(r.Devices, m.inventory())}, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(r.Driver),
		kubeletplugin.KubeClient(m.client),
		kubeletplugin.PluginDataDirectoryPath(filepath.Join(c.PluginsDir, r.Driver)),
		kubeletplugin.PluginListener(func(context.Context, string) (net.Listener, error) { return listener, nil }),
		kubeletplugin.RegistrationService(false),
		kubeletplugin.HealthService(false),
		kubeletplugin.Serialize(false),
	}, m.kubelet.metadata.options(ctx, c, r.Driver, func() { failed.Store(true) })...)...)
	if err != nil {
		return fmt.Errorf("start a helper that writes device metadata: %w", err)
	}
	defer helper.Stop()
	connection, err := grpc.NewClient("passthrough:///helper", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		return fmt.Errorf("connect to the helper that writes device metadata: %w", err)
	}
	defer func() { _ = connection.Close() }()
	claim := &drav1.Claim{Namespace: r.Claim.Namespace, Name: r.Claim.Name, Uid: string(r.Claim.UID)}
	if _, err := drav1.NewDRAPluginClient(connection).NodePrepareResources(ctx,
		&drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{claim}}); err != nil {
		return fmt.Errorf("write device metadata: %w", err)
	}
	if failed.Load() || m.lacks(r) {
		return errors.New("write device metadata: the helper failed and has logged why")
	}
	return nil
}

// recorded is a plugin that prepares nothing: its claims are prepared already. No other method is called, as the helper serves nobody
// else.
type recorded struct {
	kubeletplugin.DRAPlugin
	devices []kubeletplugin.Device
}

func (p recorded) PrepareResourceClaims(_ context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: p.devices}
	}
	return results, nil
}

func (p recorded) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, "Writing device metadata failed", "operation", msg)
}
