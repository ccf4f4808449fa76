// SPDX-License-Identifier: Apache-2.0

// Command driver-upgrade upgrades drivers as NVIDIA's GPU operator does, by the operator's own library, in the version that its release
// 26.7.0 has. It reads the policy from the ClusterPolicy. In place of the operator's watches it looks every second: between a driver pod
// that is ready and the next step, the operator may let two minutes pass.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	gpuv1 "github.com/NVIDIA/gpu-operator/api/nvidia/v1"
	"github.com/NVIDIA/k8s-operator-libs/pkg/upgrade"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// interval is how often the cluster is looked at.
const interval = time.Second

func main() {
	kubeconfig := flag.String("kubeconfig", "", "`file` with the way to the API server")
	namespace := flag.String("namespace", "gpu-operator", "`namespace` of the driver's DaemonSet")
	klog.InitFlags(nil)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	u, err := newUpgrader(ctx, config)
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := u.step(ctx, namespace); err != nil {
			klog.FromContext(ctx).Error(err, "Step of the upgrade failed")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// upgrader is the operator's state machine, and what it needs.
type upgrader struct {
	client client.Client
	states upgrade.ClusterUpgradeStateManager
}

func newUpgrader(ctx context.Context, config *rest.Config) (*upgrader, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	kinds := runtime.NewScheme()
	if err := gpuv1.AddToScheme(kinds); err != nil {
		return nil, fmt.Errorf("name the operator's kinds: %w", err)
	}
	policies, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("make a client for the operator's kinds: %w", err)
	}
	events := record.NewBroadcaster()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	upgrade.SetDriverName("gpu")
	states, err := upgrade.NewClusterUpgradeStateManager(klog.FromContext(ctx), config,
		events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "nvidia-gpu-operator"}), upgrade.StateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make the upgrade's state machine: %w", err)
	}
	states = states.WithPodDeletionEnabled(hasGPU(ctx, kube)).WithValidationEnabled("app=nvidia-operator-validator")
	return &upgrader{policies, states}, nil
}

// step moves each node on as far as it can now.
func (u *upgrader) step(ctx context.Context, namespace string) error {
	var policies gpuv1.ClusterPolicyList
	if err := u.client.List(ctx, &policies); err != nil {
		return fmt.Errorf("list ClusterPolicies: %w", err)
	}
	if len(policies.Items) != 1 || policies.Items[0].Spec.Driver.UpgradePolicy == nil {
		return nil
	}
	policy := policies.Items[0].Spec.Driver.UpgradePolicy
	state, err := u.states.BuildState(ctx, namespace, map[string]string{"app": "nvidia-driver-daemonset"})
	if err != nil {
		return fmt.Errorf("look at the cluster: %w", err)
	}
	if err := u.states.ApplyState(ctx, state, policy); err != nil {
		return fmt.Errorf("move nodes on: %w", err)
	}
	return nil
}

// hasGPU reports of pods what the operator takes for one with GPUs: extended resources by their names, whatever their quantity, and
// claims that the driver gpu.nvidia.com has allocated. It is cmd/gpu-operator/main.go, gpuPodSpecFilter, of 26.7.0 in other words.
func hasGPU(ctx context.Context, kube kubernetes.Interface) upgrade.PodDeletionFilter {
	return func(pod corev1.Pod) bool {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			return false
		}
		for _, c := range pod.Spec.Containers {
			if namesGPU(c.Resources.Limits) || namesGPU(c.Resources.Requests) {
				return true
			}
		}
		for _, c := range pod.Status.ResourceClaimStatuses {
			if c.ResourceClaimName != nil && ofNVIDIA(ctx, kube, pod.Namespace, *c.ResourceClaimName) {
				return true
			}
		}
		for _, c := range pod.Spec.ResourceClaims {
			if c.ResourceClaimName != nil && ofNVIDIA(ctx, kube, pod.Namespace, *c.ResourceClaimName) {
				return true
			}
		}
		return false
	}
}

func namesGPU(resources corev1.ResourceList) bool {
	for name := range resources {
		if strings.HasPrefix(string(name), "nvidia.com/gpu") || strings.HasPrefix(string(name), "nvidia.com/mig-") {
			return true
		}
	}
	return false
}

// ofNVIDIA reports whether a claim has a GPU of the driver gpu.nvidia.com, or cannot be read.
func ofNVIDIA(ctx context.Context, kube kubernetes.Interface, namespace, name string) bool {
	claim, err := kube.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return true
	}
	if claim.Status.Allocation == nil {
		return false
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == "gpu.nvidia.com" && (r.AdminAccess == nil || !*r.AdminAccess) {
			return true
		}
	}
	return false
}
