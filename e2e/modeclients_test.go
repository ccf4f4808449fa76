// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// monitorLabel is the label under which the monitor of the tests selects nodes.
const monitorLabel = "example.com/gpu-monitor"

// monitor is a DaemonSet on the cluster's node whose pod has a GPU open, as DCGM has.
type monitor struct{ *space }

// deploy creates the DaemonSet, and deletes it at the end.
func (m monitor) deploy(ctx context.Context, gpu int) {
	m.Helper()
	yes, root, pod := true, env.node.Root(), workload.Pod("monitor", "")
	labels := map[string]string{"app": "monitor"}
	pod.Labels, pod.Spec.NodeSelector = labels, map[string]string{monitorLabel: v1alpha1.ClientsDeployed}
	pod.Spec.RestartPolicy, pod.Spec.HostPID = corev1.RestartPolicyAlways, true
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "driver", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: root}}}}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "driver", MountPath: root}}
	c.SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	const hold = `ln -s "$0/usr/bin/nvidia-smi" /tmp/nvml-sim && exec /tmp/nvml-sim hold --root "$0" --gpu "$1"`
	c.Command = []string{"/bin/sh", "-c", hold, root, fmt.Sprint(gpu)}
	sets := env.kube.AppsV1().DaemonSets(m.name)
	_, err := sets.Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "monitor"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}},
	}, metav1.CreateOptions{})
	m.must(err)
	atEnd(m.T, func(ctx context.Context) {
		foreground := metav1.DeletePropagationForeground
		m.must(sets.Delete(ctx, "monitor", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	})
}

// opened waits until a pod other than before has the GPU open, and returns its name.
func (m monitor) opened(ctx context.Context, before string) (name string) {
	m.Helper()
	m.eventually(ctx, "the monitor to have a GPU open", func(ctx context.Context) (bool, string, error) {
		pods, err := env.kube.CoreV1().Pods(m.name).List(ctx, metav1.ListOptions{LabelSelector: "app=monitor"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Name == before {
			return false, fmt.Sprintf("%d pods", len(pods.Items)), err
		}
		name = pods.Items[0].Name
		log, err := env.cluster.PodLogs(ctx, m.name, name, "main")
		return err == nil && log == "open\n", fmt.Sprintf("%q, %v", log, err), nil
	})
	return name
}

// waitLabel waits until the node's label has a value.
func (m monitor) waitLabel(ctx context.Context, value string) {
	m.Helper()
	m.eventually(ctx, fmt.Sprintf("the label %s to be %q", monitorLabel, value), func(ctx context.Context) (bool, string, error) {
		n, err := env.kube.CoreV1().Nodes().Get(ctx, env.cluster.NodeName(), metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		return n.Labels[monitorLabel] == value, n.Labels[monitorLabel], nil
	})
}

// A monitor of a DaemonSet that has a GPU open is stopped for the change of its MIG mode, by the label that the policy names, and runs
// again after it; so it does if the plugin is killed meanwhile.
func TestMIGMode_StopsClients(t *testing.T) {
	ctx, s := newSpace(t)
	s.must(env.node.Stop())
	atEnd(s.T, s.hardware.resetDriver)
	s.hardware.sim(ctx, "create", "--node", "a100-pcie-nvlink-pairs", "--force")
	dir, label, deployed, m := s.TempDir(), "training", v1alpha1.ClientsDeployed, monitor{s}
	for name, rule := range map[string]string{
		"training":  "tiers: [exclusive], mig: {modeChange: whenIdle}",
		"inference": "mig: {layout: {1g.10gb: 7}, modeChange: whenIdle}",
	} {
		s.plugin.writePolicy(dir, name, "[{match: {indexes: [0]}, "+rule+", pauseClients: ["+monitorLabel+"]}, {tiers: [exclusive]}]")
	}
	s.plugin.labelNode(ctx, v1alpha1.PolicyLabel, &label)
	s.plugin.labelNode(ctx, monitorLabel, &deployed)
	env.node.SetFlags("--policy", dir, "--pause-clients", monitorLabel)
	atEnd(s.T, func(ctx context.Context) {
		env.node.SetFlags()
		s.plugin.labelNode(ctx, v1alpha1.PolicyLabel, nil)
		s.plugin.labelNode(ctx, monitorLabel, nil)
	})
	s.plugin.start(ctx)
	node := env.cluster.NodeName()
	s.published.waitOffer(ctx, node, "gpu=4")
	m.deploy(ctx, 0)
	first := m.opened(ctx, "")

	label = "inference"
	s.plugin.labelNode(ctx, v1alpha1.PolicyLabel, &label)
	s.events.waitOnNode(ctx, node, corev1.EventTypeNormal, "ClientsPaused", "open in nvml-sim")
	s.published.waitOffer(ctx, node, "gpu=3 mig=7")
	s.events.waitOnNode(ctx, node, corev1.EventTypeNormal, "ClientsResumed", monitorLabel)
	m.waitLabel(ctx, v1alpha1.ClientsDeployed)
	second := m.opened(ctx, first)

	s.hardware.sim(ctx, "fault", "--slow", "5s", "gpuReset")
	label = "training"
	s.plugin.labelNode(ctx, v1alpha1.PolicyLabel, &label)
	s.eventually(ctx, "a change that has begun", func(context.Context) (bool, string, error) {
		found, err := filepath.Glob(filepath.Join(env.node.PluginsDir(), records.SharedDir, records.ModesDir, "gpu-*.json"))
		return len(found) > 0, fmt.Sprint(found), err
	})
	s.must(env.node.Kill())
	m.waitLabel(ctx, v1alpha1.ClientsPaused)
	s.plugin.start(ctx)
	s.published.waitOffer(ctx, node, "gpu=4")
	m.waitLabel(ctx, v1alpha1.ClientsDeployed)
	m.opened(ctx, second)
}

// With the rights of the chart, the plugin changes the named label of its own node from one value to the other and back, and nothing else.
func TestMIGMode_ClientsRights(t *testing.T) {
	ctx, s := newSpace(t)
	chart, err := exec.CommandContext(ctx, filepath.Join(env.source, "bin", "helm"), "template", "rights",
		filepath.Join(env.source, "deployments/helm/cleave"), "--namespace", s.name, "--set", "pauseClients={"+monitorLabel+"}",
		"--show-only", "templates/rbac.yaml", "--show-only", "templates/admission-node.yaml").Output()
	s.must(err)
	_, err = env.client.Kubectl(ctx, string(chart), "apply", "-f", "-")
	s.must(err)
	atEnd(s.T, func(ctx context.Context) {
		_, err := env.client.Kubectl(ctx, string(chart), "delete", "-f", "-")
		s.must(err)
	})
	own, other := s.newPlainNode(ctx, nil).name, s.newPlainNode(ctx, nil).name
	deployed, disabled := v1alpha1.ClientsDeployed, "false"
	for _, name := range []string{own, other} {
		s.must(env.client.LabelNode(ctx, name, monitorLabel, &deployed))
		s.must(env.client.LabelNode(ctx, name, "example.com/other", &deployed))
	}
	config, err := env.cluster.RESTConfig()
	s.must(err)
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + s.name + ":rights-cleave-plugin",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {own}}}
	kube, err := kubernetes.NewForConfig(config)
	s.must(err)
	plugin := workload.Client{Kube: kube}
	paused, attempt := v1alpha1.ClientsPaused, ""
	s.eventually(ctx, "the plugin's rights to be known, and its limits", func(ctx context.Context) (bool, string, error) {
		attempt += "x" // what does not change the label is not refused
		refused := plugin.LabelNode(ctx, own, "example.com/other", &attempt)
		allowed := plugin.LabelNode(ctx, own, monitorLabel, &paused)
		denied := refused != nil && strings.Contains(refused.Error(), "ValidatingAdmissionPolicy")
		return denied && allowed == nil, fmt.Sprint(refused, allowed), nil
	})
	s.must(plugin.LabelNode(ctx, own, monitorLabel, &deployed))
	for what, err := range map[string]error{
		"another value": plugin.LabelNode(ctx, own, monitorLabel, &disabled),
		"no value":      plugin.LabelNode(ctx, own, monitorLabel, nil),
		"another node":  plugin.LabelNode(ctx, other, monitorLabel, &paused),
		"a new label":   plugin.LabelNode(ctx, own, "example.com/new", &paused),
	} {
		if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			t.Errorf("%s: %v, want that the policy refuses it", what, err)
		}
	}
}
