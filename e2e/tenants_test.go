// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
)

// What the kernel says to who opens a device file: there is no driver behind the simulated ones.
const (
	deviceAllowed = "No such device or address"
	deviceDenied  = "Operation not permitted"
)

// deviceNumbers are the major and minor numbers of a device file in a pod.
func (s pods) deviceNumbers(ctx context.Context, pod, path string) (major, minor int) {
	s.Helper()
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod, "--", "stat", "-c", "%t %T", path)
	s.must(err)
	if _, err := fmt.Sscanf(out, "%x %x", &major, &minor); err != nil {
		s.Fatalf("stat of %s in pod %s: %q: %v", path, pod, out, err)
	}
	return major, minor
}

// checkOpens checks whether root in a pod can open the device of a file in another pod, by a file that it makes itself.
func (s pods) checkOpens(ctx context.Context, pod, ofPod, path, want string) {
	s.Helper()
	major, minor := s.deviceNumbers(ctx, ofPod, path)
	script := fmt.Sprintf("rm -f /node; mknod /node c %d %d && head -c1 /node; true", major, minor)
	out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", pod, "--", "sh", "-c", script)
	s.must(err)
	if !strings.Contains(out, want) {
		s.Errorf("pod %s opens the device %d:%d (%s of %s): got %q, want %q", pod, major, minor, path, ofPod, out, want)
	}
}

// greedy has a pod ask for a device in the ways that other software knows: CDI's annotation, and NVIDIA's variable. Its LD_PRELOAD
// is for the hooks, which are run as root of the node.
func greedy(pod *corev1.Pod, device string) {
	pod.Annotations = map[string]string{"cdi.k8s.io/cleave_more": workload.Driver + "/" + cdi.Class + "=" + device}
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env,
		corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, corev1.EnvVar{Name: "LD_PRELOAD", Value: "/proc/self/cwd/evil.so"})
}

// A root container gets at the devices of its claim and at no others, whatever it makes, asks for or is annotated with.
func TestTenant_OtherDevices(t *testing.T) {
	ctx, s := newSpace(t)
	owner := s.pods.run(ctx, gpuPod("owner", 1))
	owned := s.hardware.deviceNode(find(s.published.devices(ctx, env.cluster.NodeName()), s.pods.device(ctx, owner)))
	partition := s.pods.run(ctx, partitionPod("partition", smallClass))
	seen := s.pods.look(ctx, partition.Name, "main")

	objects := gpuPod("tenant", 1)
	greedy(podOf(objects), s.pods.device(ctx, owner))
	tenant := s.pods.run(ctx, objects)
	s.pods.checkSees(ctx, tenant, s.pods.devices(ctx, tenant))
	own := s.hardware.deviceNode(find(s.published.devices(ctx, env.cluster.NodeName()), s.pods.device(ctx, tenant)))
	s.pods.checkOpens(ctx, "tenant", "tenant", own, deviceAllowed)
	s.pods.checkOpens(ctx, "tenant", "owner", owned, deviceDenied)
	if len(seen.Capabilities()) != 2 {
		t.Errorf("a partition has the capabilities %v", seen.Capabilities())
	}
	for _, capability := range seen.Capabilities() {
		s.pods.checkOpens(ctx, "partition", "partition", capability, deviceAllowed)
		s.pods.checkOpens(ctx, "tenant", "partition", capability, deviceDenied)
		s.pods.checkOpens(ctx, "owner", "partition", capability, deviceDenied)
	}

	// Without a claim there is nothing.
	without := workload.Pod("without", "")
	greedy(without, s.pods.device(ctx, owner))
	s.create(ctx, without)
	s.pods.running(ctx, "without")
	seen = s.pods.look(ctx, "without", "main")
	if diff := cmp.Diff(workload.Seen{Environment: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, seen); diff != "" {
		t.Errorf("what a pod without a claim sees (-want +got):\n%s", diff)
	}
	for _, path := range []string{owned, "/dev/nvidiactl", "/dev/nvidia-uvm"} {
		s.pods.checkOpens(ctx, "without", "owner", path, deviceDenied)
	}
}

// tenantOf is a client of the administrator of a test's namespace.
func tenantOf(ctx context.Context, s *space) kubernetes.Interface {
	s.Helper()
	user := "tenant-of-" + s.name
	_, err := env.kube.RbacV1().RoleBindings(s.name).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	s.must(err)
	config, err := env.cluster.RESTConfig()
	s.must(err)
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	s.eventually(ctx, "the tenant's rights to be known", func(ctx context.Context) (bool, string, error) {
		_, err := client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		return err == nil, fmt.Sprint(err), nil
	})
	return client
}

// Who administers a namespace cannot allocate by hand, publish, change classes, nor give the namespace admin access.
func TestTenant_API(t *testing.T) {
	ctx, s := newSpace(t)
	tenant := tenantOf(ctx, s)
	owner := s.pods.run(ctx, gpuPod("owner", 1))
	s.create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: claimOf(1)})
	claim, err := env.kube.ResourceV1().ResourceClaims(s.name).Get(ctx, "mine", metav1.GetOptions{})
	s.must(err)
	allocation := workload.OneGPU(env.cluster.NodeName(), s.pods.device(ctx, owner), false)
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: allocation}
	node, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
	s.must(err)
	namespace, err := env.kube.CoreV1().Namespaces().Get(ctx, s.name, metav1.GetOptions{})
	s.must(err)
	namespace.Labels[resourceapi.DRAAdminNamespaceLabelKey] = "true"
	node.Labels["gpu.cleave.dev/policy"] = "mine"
	for what, try := range map[string]func() error{
		"allocate": func() error {
			_, err := tenant.ResourceV1().ResourceClaims(s.name).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
			return err
		},
		"publish": func() error {
			_, err := tenant.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "mine"},
				Spec: resourceapi.ResourceSliceSpec{NodeName: &node.Name, Driver: workload.Driver, Pool: resourceapi.ResourcePool{
					Name: node.Name, Generation: 1 << 40, ResourceSliceCount: 1}},
			}, metav1.CreateOptions{})
			return err
		},
		"create a class": func() error {
			_, err := tenant.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
			return err
		},
		"choose a policy": func() error {
			_, err := tenant.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
			return err
		},
		"get admin access": func() error {
			_, err := tenant.CoreV1().Namespaces().Update(ctx, namespace, metav1.UpdateOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it forbidden", what, err)
		}
	}
	// Without the namespace's label nobody creates claims with admin access.
	spec := claimOf(1)
	yes := true
	spec.Devices.Requests[0].Exactly.AdminAccess = &yes
	_, err = env.kube.ResourceV1().ResourceClaims(s.name).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "admin"}, Spec: spec}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), resourceapi.DRAAdminNamespaceLabelKey) {
		t.Errorf("a claim with admin access: got %v, want it refused for want of the label %s", err, resourceapi.DRAAdminNamespaceLabelKey)
	}
}

// What a tenant left in the shared memory of an MPS server is gone when the next one gets the GPU.
func TestMPS_NothingLeftForNextTenant(t *testing.T) {
	ctx, s := newSpace(t)
	s.pods.run(ctx, gpuPod("seven", gpus-1))
	for _, name := range []string{"first", "next"} {
		pod := s.pods.run(ctx, mpsPod(name, shareSpec(mpsClass)))
		s.pods.served(ctx, pod)
		out, err := env.client.Kubectl(ctx, "", "--namespace", s.name, "exec", name, "--", "sh", "-c",
			"ls -A /dev/shm; echo secret > /dev/shm/of-"+name+" && ls -A /tmp/nvidia-mps")
		s.must(err)
		if strings.TrimSpace(out) != "control\nlog" {
			t.Errorf("pod %s finds %q, want a directory of clients alone", name, out)
		}
		s.pods.delete(ctx, name)
		s.hardware.waitNoMPS(ctx)
	}
}
