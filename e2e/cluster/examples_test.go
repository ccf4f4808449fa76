// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func examplePods(t *testing.T) map[string][]*corev1.Pod {
	t.Helper()
	files, err := filepath.Glob("../../deployments/examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	pods := map[string][]*corev1.Pod{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(t, err)
		reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
		for {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if pod, ok := object.(*corev1.Pod); ok {
				pods[filepath.Base(file)] = append(pods[filepath.Base(file)], pod)
			}
		}
	}
	return pods
}

// TestExamples_ImagesAreLocal keeps examples to the image that every cluster of this package has. What the kubelet would
// pull all the same, one whose tag is latest or none, fails where there is no network.
func TestExamples_ImagesAreLocal(t *testing.T) {
	for file, pods := range examplePods(t) {
		for _, pod := range pods {
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				if c.Image != ExampleImage {
					t.Errorf("%s: container %s of pod %s has the image %s, which a local cluster does not have: want %s", file, c.Name, pod.Name, c.Image, ExampleImage)
				}
				if c.ImagePullPolicy != "" && c.ImagePullPolicy != corev1.PullIfNotPresent {
					t.Errorf("%s: container %s of pod %s has the pull policy %s", file, c.Name, pod.Name, c.ImagePullPolicy)
				}
			}
		}
	}
	if _, tag, ok := strings.Cut(ExampleImage, ":"); !ok || tag == "latest" {
		t.Errorf("the image %s is pulled each time", ExampleImage)
	}
}
