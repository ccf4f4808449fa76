// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodLogs returns what a container of a pod wrote, both streams as they came,
// from its last start. It reads the files of the kubelet, so it works when the
// kubelet does not run.
func (c *Cluster) PodLogs(ctx context.Context, namespace, pod, container string) (string, error) {
	client, err := c.Client()
	if err != nil {
		return "", err
	}
	object, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find the log of pod %s/%s: %w", namespace, pod, err)
	}
	nodes := c.Nodes()
	at := max(0, slices.IndexFunc(nodes, func(n Node) bool { return n.Name() == object.Spec.NodeName }))
	directory := filepath.Join(nodes[at].layout.podLogs(), fmt.Sprintf("%s_%s_%s", namespace, pod, object.UID), container)
	entries, err := os.ReadDir(directory)
	if err != nil {
		return "", fmt.Errorf("find the log of container %s of pod %s/%s (has it started?): %w", container, namespace, pod, err)
	}
	last := -1
	for _, entry := range entries {
		if n, err := strconv.Atoi(strings.TrimSuffix(entry.Name(), ".log")); err == nil {
			last = max(last, n)
		}
	}
	if last < 0 {
		return "", fmt.Errorf("find the log of container %s of pod %s/%s: %s holds none", container, namespace, pod, directory)
	}
	data, err := os.ReadFile(filepath.Join(directory, strconv.Itoa(last)+".log"))
	if err != nil {
		return "", fmt.Errorf("read the log of container %s of pod %s/%s: %w", container, namespace, pod, err)
	}
	return decodeLog(data), nil
}

// decodeLog takes the container runtime's frame off each line: a time, a
// stream, and F at the end of a line or P for a part of one.
func decodeLog(data []byte) string {
	var b strings.Builder
	for line := range bytes.Lines(data) {
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 4)
		if len(fields) < 4 {
			continue
		}
		b.Write(fields[3])
		if tags := strings.Split(string(fields[2]), ":"); slices.Contains(tags, "F") {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
