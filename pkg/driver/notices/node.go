// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// signal is what a taint of a Node announces.
type signal struct {
	kind   Kind
	within time.Duration
}

// taints are the node taints by which handlers pass notices on. Where the provider promises a time, it is counted from the taint.
var taints = map[string]signal{
	// aws-node-termination-handler, --taint-node (pkg/node/node.go). Two minutes: "Spot Instance interruption notices" of Amazon EC2.
	"aws-node-termination-handler/spot-itn":                  {Reclaim, 2 * time.Minute},
	"aws-node-termination-handler/scheduled-maintenance":     {Maintenance, 0},
	"aws-node-termination-handler/asg-lifecycle-termination": {Reclaim, 0},
	"cloud.google.com/impending-node-termination":            {Reclaim, gcePreempted}, // GKE, and k8s-node-termination-handler (README)
	"karpenter.sh/disrupted":                                 {Reclaim, 0},            // Karpenter from 1.0 on (pkg/apis/v1/taints.go)
	"remediator.kubernetes.azure.com/unschedulable":          {Maintenance, 0},        // "Node auto-drain" of AKS
	"remediator.aks.microsoft.com/unschedulable":             {Maintenance, 0},        // its earlier name (release notes of AKS)
	"cloudprovider.azure.microsoft.com/draining":             {Reclaim, azurePreempt}, // cloud-provider-azure, "spot-eviction"
}

// conditions are the node conditions of AKS' node problem detector. Their messages begin with the type of the event: "Preempt
// Scheduled: Mon, 02 Mar 2026 19:01:45 GMT. For more ..." (Azure/karpenter-provider-azure, interruption controller).
var conditions = []corev1.NodeConditionType{"PreemptionScheduled", "VMEventScheduled"}

// OfNode returns the notices that handlers have written on a Node. It is pure.
func OfNode(node *corev1.Node) []Notice {
	var all []Notice
	for _, taint := range node.Spec.Taints {
		if s, known := taints[taint.Key]; known {
			all = append(all, Notice{Source: Node, ID: taint.Key, Kind: s.kind, Within: s.within, Text: "taint " + taint.Key})
		}
	}
	for _, c := range node.Status.Conditions {
		for _, known := range conditions {
			if c.Type == known && c.Status == corev1.ConditionTrue {
				all = append(all, ofMessage(string(c.Type), c.Message)...)
			}
		}
	}
	return bounded(all)
}

// ofMessage reads the message of a condition.
func ofMessage(condition, message string) []Notice {
	event, rest, _ := strings.Cut(message, " Scheduled:")
	kind, known := azureKinds[event]
	if !known {
		return nil
	}
	n := Notice{Source: Node, ID: "condition " + condition, Kind: kind, Text: message}
	when, _, _ := strings.Cut(strings.TrimSpace(rest), ". ")
	// Without a time the notice holds all the same. Times far away are checked by Decide, which knows the present.
	for _, layout := range azureTimes {
		if at, err := time.Parse(layout, strings.TrimSuffix(when, ".")); err == nil {
			n.At = at.UTC()
			break
		}
	}
	if n.At.IsZero() && kind == Reclaim {
		n.Within = azurePreempt
	}
	return []Notice{n}
}

// nodeSource passes on what handlers have written on the Node.
type nodeSource struct {
	read func() ([]Notice, error)
}

// Name implements Source.
func (nodeSource) Name() string { return Node }

// Poll implements Source. It asks nobody.
func (n nodeSource) Poll(context.Context) ([]Notice, error) { return n.read() }
