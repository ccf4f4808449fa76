// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	driverApp    = "nvidia-driver-daemonset"
	validatorApp = "nvidia-operator-validator"
	// versionKey is the annotation of driver pods with the driver's version.
	versionKey = "version"
	// paused is the value that k8s-driver-manager sets.
	paused = "paused-for-driver-upgrade"
	// backOff is how long an attempt that failed takes to be repeated.
	backOff = 2 * time.Second
)

// daemonSet of one of the operator's components, on nodes with a label. As in the operator's own, a driver pod is replaced when it is
// deleted, and then waits in its init container for k8s-driver-manager.
func daemonSet(app, label, version, dir string) *appsv1.DaemonSet {
	labels := map[string]string{"app": app}
	pod := workload.Pod("", "").Spec
	pod.RestartPolicy, pod.NodeSelector = corev1.RestartPolicyAlways, map[string]string{label: "true"}
	pod.Containers[0].Command = []string{"/bin/sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"}
	strategy := appsv1.RollingUpdateDaemonSetStrategyType
	if app == driverApp {
		strategy = appsv1.OnDeleteDaemonSetStrategyType
		manager := *pod.Containers[0].DeepCopy()
		manager.Name, manager.Command = "k8s-driver-manager", []string{"/bin/sh", "-c", "until [ -e /driver/$POD ]; do sleep 1; done"}
		manager.Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
		}}}
		pod.InitContainers = []corev1.Container{manager}
		mount(&pod, &pod.InitContainers[0], dir)
	}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: app, Labels: labels}, Spec: appsv1.DaemonSetSpec{
		Selector:       &metav1.LabelSelector{MatchLabels: labels},
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: strategy},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{versionKey: version}}, Spec: pod,
		},
	}}
}

// mount gives a container the stand-ins' directory.
func mount(pod *corev1.PodSpec, c *corev1.Container, dir string) {
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "stand-in", MountPath: "/driver"})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "stand-in", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir},
	}})
}

// manager stands in for k8s-driver-manager and the driver's container on a node. Like that, it waits for the operator's own pods and not
// for Cleave, tries once to unload the driver, and where that fails takes back what it did to do all of it again later.
type manager struct {
	*place
	// loaded is the version of the driver.
	loaded string
	// replaced counts drivers, refused those that could not be unloaded, by reason the last.
	replaced, refused atomic.Int32
	reason            atomic.Value
}

// run serves the driver pods of the node until ctx ends.
func (m *manager) run(ctx context.Context) error {
	for {
		pod, err := m.waiting(ctx)
		wait := backOff / 10
		if err == nil && pod != nil {
			if err = m.serve(ctx, pod); errors.Is(err, errRefused) {
				err, wait = nil, backOff
			}
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was to end
		}
		if err != nil {
			return fmt.Errorf("replace the driver of node %s: %w", m.Name(), err)
		}
		pause := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// pods of the operator's on the node.
func (m *manager) pods(ctx context.Context, app string) ([]corev1.Pod, error) {
	list, err := env.client.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app=" + app, FieldSelector: "spec.nodeName=" + m.Name(),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", app, err)
	}
	return list.Items, nil
}

// waiting is the driver pod that waits for the manager, nil for none.
func (m *manager) waiting(ctx context.Context) (*corev1.Pod, error) {
	pods, err := m.pods(ctx, driverApp)
	for i := range pods {
		if s := pods[i].Status.InitContainerStatuses; pods[i].DeletionTimestamp == nil && len(s) == 1 && s[0].State.Running != nil {
			return &pods[i], nil
		}
	}
	return nil, err
}

var errRefused = errors.New("the driver is in use")

// serve replaces the driver, unless it is there already, and lets the pod go on.
func (m *manager) serve(ctx context.Context, pod *corev1.Pod) error {
	if version := pod.Annotations[versionKey]; version != m.loaded {
		if err := m.unload(ctx); err != nil {
			return err
		}
		if _, err := m.gpus.Sim(ctx, "driver", "load"); err != nil {
			return err
		}
		m.loaded = version
		m.replaced.Add(1)
	}
	return os.WriteFile(m.HostPath(filepath.Join(m.dir, string(pod.UID))), nil, 0o600)
}

// unload takes the driver away while the operator's labels are paused.
func (m *manager) unload(ctx context.Context) error {
	if err := m.label(ctx, paused); err != nil {
		return err
	}
	err := workload.Until(ctx, "the validator of node "+m.Name()+" to end", func(ctx context.Context) (bool, string, error) {
		pods, err := m.pods(ctx, validatorApp)
		return len(pods) == 0, fmt.Sprintf("%d pods", len(pods)), err
	})
	if err != nil {
		return err
	}
	if _, err := m.gpus.Sim(ctx, "driver", "unload"); err != nil {
		m.refused.Add(1)
		m.reason.Store(err.Error())
		return errors.Join(errRefused, m.label(ctx, "true"))
	}
	// Whoever had the driver open would have kept it.
	users, err := usersOn(ctx, m.Name())
	if err == nil && len(users) > 0 {
		err = fmt.Errorf("the driver is unloaded under pods %v", users)
	}
	return errors.Join(err, m.label(ctx, "true"))
}

// label sets those of the components that are there.
func (m *manager) label(ctx context.Context, value string) error {
	return errors.Join(env.client.LabelNode(ctx, m.Name(), clientLabel, &value), env.client.LabelNode(ctx, m.Name(), validatorLabel, &value))
}

// usersOn are the pods with claims on a node that have not ended.
func usersOn(ctx context.Context, node string) (names []string, err error) {
	list, err := env.client.Kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; len(p.Spec.ResourceClaims) > 0 && !ended(p) {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
