// SPDX-License-Identifier: Apache-2.0

// Package workload creates what users of Cleave write, DeviceClasses, claims and pods, from manifests, and looks at
// what came of it: the devices that were allocated and what a container sees of them.
package workload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// Image is the local image that pods get in place of their own.
const Image = "cleave.local/busybox:e2e"

// looking is a command that prints what a container sees of its devices.
const looking = `ls -d /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null; env | grep -E '^(NVIDIA|CUDA|CLEAVE)_' | sort; ` +
	`for l in /usr/lib/x86_64-linux-gnu/libcuda.so.1; do [ -s $l ] && echo $l; done; echo ` + lookEnd

// look is what a container runs in place of its own command: it looks, then stays.
const look = looking + `; trap 'exit 0' TERM; sleep infinity & wait`

// lookEnd is the last line that look prints.
const lookEnd = "end-of-look"

// Load reads the objects of a manifest, as strictly as an API server does, and makes its pods runnable here: a field that
// does not exist is an error.
func Load(path string) ([]runtime.Object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	objects, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("read the manifest %s: %w", path, err)
	}
	return objects, nil
}

// Decode is Load for a manifest in memory.
func Decode(data []byte) ([]runtime.Object, error) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var objects []runtime.Object
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("split documents: %w", err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		object, _, err := strict.Decode(doc, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("decode document %d: %w", len(objects)+1, err)
		}
		if pod, ok := object.(*corev1.Pod); ok {
			MakeLocal(&pod.Spec)
		}
		objects = append(objects, object)
	}
}

// MakeLocal gives a pod's containers the local image and a command that prints what they see.
func MakeLocal(spec *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			containers[i].Image = Image
			containers[i].ImagePullPolicy = corev1.PullNever
			containers[i].Command = []string{"/bin/sh", "-c", look}
		}
	}
	none, grace := false, int64(2)
	spec.AutomountServiceAccountToken = &none
	spec.TerminationGracePeriodSeconds = &grace
}

// Create makes objects in a namespace. What is there already stays as it is.
func Create(ctx context.Context, client kubernetes.Interface, namespace string, objects []runtime.Object) error {
	for _, object := range objects {
		if err := createOne(ctx, client, namespace, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	return nil
}

// CreatePriority creates a PriorityClass, and waits until the API server lets pods of a namespace have it: it looks for it in a cache.
func (c Client) CreatePriority(ctx context.Context, namespace string, class *schedulingv1.PriorityClass) error {
	if _, err := c.Kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create PriorityClass %s: %w", class.Name, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry-run"}, Spec: corev1.PodSpec{
		PriorityClassName: class.Name, Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}}
	return Until(ctx, "PriorityClass "+class.Name+" to be known", func(ctx context.Context) (bool, string, error) {
		_, err := c.Kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return false, err.Error(), nil
		}
		return err == nil, "", err
	})
}

func createOne(ctx context.Context, client kubernetes.Interface, namespace string, object runtime.Object) error {
	opts := metav1.CreateOptions{}
	var err error
	switch o := object.(type) {
	case *corev1.Pod:
		_, err = client.CoreV1().Pods(namespace).Create(ctx, o, opts)
	case *corev1.Namespace:
		_, err = client.CoreV1().Namespaces().Create(ctx, o, opts)
	case *corev1.ResourceQuota:
		_, err = client.CoreV1().ResourceQuotas(namespace).Create(ctx, o, opts)
	case *resourceapi.DeviceClass:
		_, err = client.ResourceV1().DeviceClasses().Create(ctx, o, opts)
	case *resourceapi.ResourceClaim:
		_, err = client.ResourceV1().ResourceClaims(namespace).Create(ctx, o, opts)
	case *resourceapi.ResourceClaimTemplate:
		_, err = client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, o, opts)
	default:
		return errors.New("no such kind is used in examples")
	}
	return err
}
