// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// restConfig sets rate limits that do not throttle a node full of claims: client-go's 5 requests a second make a
// burst of pods wait for seconds.
func restConfig(c Config) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server (--kubeconfig %q; empty means the pod's service account): %w", c.Kubeconfig, err)
	}
	config.QPS, config.Burst = c.KubeQPS, c.KubeBurst
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.UserAgent = c.DriverName + "/" + c.NodeName
	return config, nil
}

// startKubeletPlugin opens the sockets and registers with the kubelet.
func (s *service) startKubeletPlugin(ctx context.Context, fatal context.CancelCauseFunc) error {
	named := s.engine.Named(s.config.DriverName)
	status, err := s.newStatus(named)
	if err != nil {
		return err
	}
	helper, err := s.kubelet.serve(ctx, s.client, s.config.DriverName, s.config.PodUID, &plugin{
		claims: named, record: named.Record, metrics: s.metrics, health: &s.health, claimEvents: s.claimEvents, status: status,
		inventory: s.names.inventory, fatal: fatal, written: s.writes.note,
	})
	if err != nil {
		return err
	}
	s.status, s.helper = status, helper
	return nil
}

// kubelet connects plugins to the kubelet.
type kubelet struct {
	config   *Config
	metadata metadataFiles
	// registered is when the kubelet last registered a plugin, in nanoseconds since 1970.
	registered atomic.Int64
	inflight   inflight
}

// serve opens the sockets of a driver name. The pod UID distinguishes them from those of other plugins of that name.
func (k *kubelet) serve(
	ctx context.Context, client kubernetes.Interface, driver, podUID string, p *plugin,
) (*kubeletplugin.Helper, error) {
	dir := filepath.Join(k.config.PluginsDir, driver)
	k.metadata.sweep(ctx, k.config, driver)
	if err := k.metadata.open(k.config, driver); err != nil {
		return nil, err
	}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(driver),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(k.config.NodeName),
		kubeletplugin.RegistrarDirectoryPath(k.config.RegistryDir),
		kubeletplugin.PluginDataDirectoryPath(dir),
		// Locks are per GPU and hold across processes; the helper's single lock would serialize all claims.
		kubeletplugin.Serialize(false),
		// Kubelets have called v1 since 1.34, and older ones know no resource.k8s.io/v1.
		kubeletplugin.NodeV1beta1(false),
		kubeletplugin.GRPCInterceptor(k.noteRegistration),
		kubeletplugin.GRPCInterceptor(k.inflight.intercept),
	}
	options = append(options, k.metadata.options(ctx, k.config, driver, p.metrics.metadataFailures.Inc)...)
	if podUID != "" {
		options = append(options, kubeletplugin.RollingUpdate(types.UID(podUID)))
	}
	helper, err := kubeletplugin.Start(ctx, p, options...)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's sockets in %s and %s: %w", dir, k.config.RegistryDir, err)
	}
	return helper, nil
}

// noteRegistration detects that a kubelet, possibly restarted, registers the plugin, and marks the response as Cleave's.
func (k *kubelet) noteRegistration(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/GetInfo") {
		if err := grpc.SetHeader(ctx, metadata.Pairs(ownHeader, k.config.DriverName)); err != nil {
			return nil, fmt.Errorf("mark the plugin as Cleave's: %w", err)
		}
	}
	answer, err := handler(ctx, req)
	if err == nil && strings.HasSuffix(info.FullMethod, "/NotifyRegistrationStatus") {
		k.registered.Store(time.Now().UnixNano())
	}
	return answer, err
}
