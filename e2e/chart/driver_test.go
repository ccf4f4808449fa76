// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// operatorRoot is where the GPU operator mounts the root of its driver container.
const operatorRoot = "/run/nvidia/driver"

// TestRelease_DriverContainerLater installs with the chart's defaults for driver and plugin on a node without a
// driver, and brings the driver after.
func TestRelease_DriverContainerLater(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	if _, err := os.Lstat(operatorRoot); err == nil {
		t.Skipf("%s is in use here", operatorRoot)
	}
	// The kubelet makes the directory; what is mounted in it later is seen by the plugin if it is a shared mount, as /run is.
	directory := filepath.Dir(operatorRoot)
	must(t, errors.Join(os.MkdirAll(operatorRoot, 0o755), unix.Mount(directory, directory, "", unix.MS_BIND, ""), unix.Mount("", directory, "", unix.MS_SHARED, "")))
	t.Cleanup(func() {
		_ = unix.Unmount(operatorRoot, unix.MNT_DETACH)
		if err := errors.Join(unix.Unmount(directory, unix.MNT_DETACH), os.Remove(operatorRoot), os.Remove(directory)); err != nil {
			t.Error(err)
		}
	})
	values := strings.NewReplacer("$kubelet", env.cluster.KubeletDir(), "$cdi", env.cluster.CDIDir(), "$hooks", env.HookDir(),
		"$host", cluster.PodGateway, "$port", env.api.Port).Replace(`
image: {repository: cleave.local/cleave, tag: e2e, pullPolicy: Never}
kubelet: {dir: $kubelet}
cdi: {dir: $cdi, hookDir: $hooks}
plugin: {env: [{name: KUBERNETES_SERVICE_HOST, value: $host}, {name: KUBERNETES_SERVICE_PORT, value: "$port"}]}
mps: {enabled: false}
`)
	atEnd(t, emptyDemo, uninstall)
	helmOn(t, values, "install", "cleave", chartDir, "--create-namespace")
	pluginSays(t, ctx, "libnvidia-ml.so.1 not found under /host or /host/run/nvidia/driver")
	if pluginContainer(t, ctx).Ready {
		t.Error("the plugin is ready without a driver")
	}
	must(t, unix.Mount(env.Node.Root(), operatorRoot, "", unix.MS_BIND, ""))
	pluginSays(t, ctx, `driverRoot="/run/nvidia/driver"`)
	pod := example(t, ctx, "one-gpu", nil)[0]
	seen, err := env.client.Look(ctx, demo, pod.Name, pod.Spec.Containers[0].Name)
	must(t, err)
	if len(seen.GPUNodes()) != 1 || len(seen.Libraries) != 1 {
		t.Errorf("the pod sees %+v", seen)
	}
	spec := readFile(t, filepath.Join(env.cluster.CDIDir(), "gpu.cleave.dev-gpu.json"))
	if text := string(spec); !strings.Contains(text, `"hostPath":"/run/nvidia/driver/dev/nvidiactl"`) || strings.Contains(text, `"/host`) {
		t.Errorf("the CDI spec has other paths than the host's: %s", text)
	}
	if restarts := pluginContainer(t, ctx).RestartCount; restarts > 0 {
		t.Errorf("the plugin restarted %d times", restarts)
	}
}

// pluginContainer is how the plugin's container is, once the API server knows, which may be after its log says something.
func pluginContainer(t *testing.T, ctx context.Context) (status corev1.ContainerStatus) {
	t.Helper()
	must(t, workload.Until(ctx, "the status of the plugin's container", func(ctx context.Context) (bool, string, error) {
		pod := podOf(t, ctx, "plugin")
		if len(pod.Status.ContainerStatuses) == 0 {
			return false, workload.Describe(pod), nil
		}
		status = pod.Status.ContainerStatuses[0]
		return true, "", nil
	}))
	return status
}

// pluginSays waits until the plugin's log has a text.
func pluginSays(t *testing.T, ctx context.Context, what string) {
	t.Helper()
	must(t, workload.Until(ctx, "the plugin to say "+what, func(ctx context.Context) (bool, string, error) {
		log, err := env.cluster.PodLogs(ctx, namespace, podOf(t, ctx, "plugin").Name, "plugin")
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the log appears with the container
		}
		return strings.Contains(log, what), log, nil
	}))
}
