// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/controlplane"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/apiclient"
	configutil "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/staticpod"
	kubeschedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
)

const (
	patchDir = "../../deployments/kubeadm"
	config   = patchDir + "/cleave-scheduler.yaml"
	// golden is the static pod as kubeadm makes it with the patch. Tests of other modules run it: e2e/scheduling.
	golden = "../testdata/kubeadm/kube-scheduler.yaml"
)

// cluster is a configuration of kubeadm, as it is without one, of a release of Kubernetes.
func cluster(t *testing.T, release string) *kubeadmapi.InitConfiguration {
	t.Helper()
	c, err := configutil.DefaultedStaticInitConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	c.KubernetesVersion = release
	c.LocalAPIEndpoint.AdvertiseAddress = "127.0.0.1"
	return c
}

// manifests writes those of the control plane with the patches of a directory, as kubeadm init, join and upgrade do.
func manifests(t *testing.T, patches string, c *kubeadmapi.InitConfiguration) string {
	t.Helper()
	dir := t.TempDir()
	if err := controlplane.CreateInitStaticPodManifestFiles(dir, patches, c, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

// scheduler is the static pod in a directory of manifests.
func scheduler(t *testing.T, dir string) *corev1.Pod {
	t.Helper()
	pods, err := staticpod.ReadMultipleStaticPodsFromDisk(dir, constants.KubeScheduler)
	if err != nil {
		t.Fatal(err)
	}
	return pods[constants.KubeScheduler]
}

// TestPatch_Manifest: what the patch makes of kubeadm's manifest, is written down. UPDATE=1 writes it.
func TestPatch_Manifest(t *testing.T) {
	got, err := os.ReadFile(constants.GetStaticPodFilepath(constants.KubeScheduler, manifests(t, patchDir, cluster(t, "v1.37.2"))))
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") == "1" {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("kubeadm writes another manifest; UPDATE=1 accepts it (-want +got):\n%s", diff)
	}
}

// TestPatch_KeepsTheRest: the pod keeps all that the patch does not name, and what an administrator has configured. Its file of
// configuration is mounted, and names the kubeconfig that kubeadm mounts.
func TestPatch_KeepsTheRest(t *testing.T) {
	c := cluster(t, "v1.37.2")
	c.Scheduler.ExtraArgs = []kubeadmapi.Arg{{Name: "bind-address", Value: "0.0.0.0"}, {Name: "v", Value: "4"}}
	c.Scheduler.ExtraVolumes = []kubeadmapi.HostPathMount{{Name: "logs", HostPath: "/var/log/s", MountPath: "/var/log/s", PathType: "Directory"}}
	want, got := scheduler(t, manifests(t, "", c)), scheduler(t, manifests(t, patchDir, c))
	patched := &got.Spec.Containers[0]
	file := "/etc/kubernetes/cleave-scheduler.yaml"
	if !slices.Contains(patched.Command, "--config="+file) {
		t.Fatalf("command %q has no --config", patched.Command)
	}
	container := &want.Spec.Containers[0]
	container.Image, container.SecurityContext = patched.Image, patched.SecurityContext
	container.Command = append(container.Command, "--config="+file)
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "cleave-scheduler", MountPath: file, ReadOnly: true})
	want.Spec.Volumes = append(want.Spec.Volumes, corev1.Volume{Name: "cleave-scheduler", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: file, Type: new(corev1.HostPathFile)},
	}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the static pod (-want +got):\n%s", diff)
	}
	kubeconfig := read(t).ClientConnection.Kubeconfig
	if !slices.ContainsFunc(patched.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == kubeconfig }) {
		t.Errorf("the kubeconfig %s is none of %v", kubeconfig, patched.VolumeMounts)
	}
}

// TestPatch_Upgrade: an upgrade writes the same manifest again, so that kubeadm leaves the pod alone. Without the patches it writes
// kube-scheduler's.
func TestPatch_Upgrade(t *testing.T) {
	before := constants.GetStaticPodFilepath(constants.KubeScheduler, manifests(t, patchDir, cluster(t, "v1.37.2")))
	for patches, same := range map[string]bool{patchDir: true, "": false} {
		after := constants.GetStaticPodFilepath(constants.KubeScheduler, manifests(t, patches, cluster(t, "v1.38.0")))
		equal, diff, err := staticpod.ManifestFilesAreEqual(before, after)
		if err != nil || equal != same {
			t.Errorf("patches %q: the manifests are equal: %t, want %t: %v\n%s", patches, equal, same, err, diff)
		}
	}
}

// TestPatch_Found: kubeadm init and join wait for the container whose command begins with the component's name. With another name
// they fail, healthy or not (getControlPlaneComponentAddressAndPort in cmd/kubeadm/app/util/apiclient/wait.go).
func TestPatch_Found(t *testing.T) {
	const lost = "no container command starting with"
	wait := func(patches string) string {
		pods, err := staticpod.ReadMultipleStaticPodsFromDisk(manifests(t, patches, cluster(t, "v1.37.2")), constants.ControlPlaneComponents...)
		if err != nil {
			t.Fatal(err)
		}
		// No control plane runs here: it fails either way.
		nobody := kubernetes.NewForConfigOrDie(&rest.Config{Host: "https://127.0.0.1:1"})
		err = apiclient.NewKubeWaiter(nobody, time.Nanosecond, io.Discard).WaitForControlPlaneComponents(pods, "127.0.0.1")
		if err == nil {
			t.Fatal("kubeadm found a healthy control plane")
		}
		return err.Error()
	}
	if got := wait(patchDir); strings.Contains(got, lost) {
		t.Errorf("kubeadm does not find the container: %s", got)
	}
	renamed := t.TempDir()
	patch := "- {op: replace, path: /spec/containers/0/command/0, value: /usr/bin/cleave-scheduler}\n"
	if err := os.WriteFile(filepath.Join(renamed, "kube-scheduler+json.yaml"), []byte(patch), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := wait(renamed); !strings.Contains(got, lost) {
		t.Errorf("kubeadm finds the container by another name, too: %s", got)
	}
}

// read decodes the configuration as kube-scheduler does, strictly, and validates it.
func read(t *testing.T) *kubeschedulerconfig.KubeSchedulerConfiguration {
	t.Helper()
	logger, _ := ktesting.NewTestContext(t)
	c, err := options.LoadConfigFromFile(logger, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := validation.ValidateKubeSchedulerConfiguration(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConfig: it takes kube-scheduler's lease, for the pods of both names. A field that does not exist is refused.
func TestConfig(t *testing.T) {
	c := read(t)
	want, got := options.NewOptions().LeaderElection, c.LeaderElection
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("leader election is not kube-scheduler's (-want +got):\n%s", diff)
	}
	var names []string
	for _, p := range c.Profiles {
		names = append(names, p.SchedulerName)
	}
	if diff := cmp.Diff([]string{corev1.DefaultSchedulerName, "cleave-scheduler"}, names); diff != "" {
		t.Errorf("profiles (-want +got):\n%s", diff)
	}
	data, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(other, bytes.Replace(data, []byte("leaderElect:"), []byte("leaderElects:"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	logger, _ := ktesting.NewTestContext(t)
	if _, err := options.LoadConfigFromFile(logger, other); err == nil {
		t.Error("a field that does not exist is accepted")
	}
}
