// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// prepareFailed is the reason of the kubelet's Event when a plugin does not prepare a claim.
const prepareFailed = "FailedPrepareDynamicResources"

// events is what was reported as Events.
type events struct{ *space }

// wait waits for an Event of a reason on an object whose message has all parts.
func (s events) wait(ctx context.Context, namespace, object, reason string, parts ...string) {
	s.Helper()
	start := time.Now()
	s.must(env.client.WaitEvent(ctx, namespace, object, reason, parts...))
	s.logSlow("Event "+reason+" on "+object, start)
}

// waitOnNode waits for an Event about a node that says something.
func (s events) waitOnNode(ctx context.Context, nodeName, kind, reason, says string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("an Event %s on node %s that says %q", reason, nodeName, says), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + nodeName + ",reason=" + reason})
		if err != nil {
			return false, "", err
		}
		var seen []string
		for _, e := range list.Items {
			seen = append(seen, e.Message)
			if e.Type == kind && strings.Contains(e.Message, says) {
				return true, "", nil
			}
		}
		return false, fmt.Sprintf("%q", seen), nil
	})
}

// refusals are the Events that say that the kubelet could not prepare a pod's claims, but for those of a kubelet that was too early to
// ask the plugin.
func (s events) refusals(ctx context.Context, pod string) []string {
	s.Helper()
	list, err := env.kube.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + prepareFailed + ",involvedObject.name=" + pod})
	s.must(err)
	var all []string
	for _, e := range list.Items {
		if !workload.Early(e.Message) {
			all = append(all, e.Message)
		}
	}
	return all
}
