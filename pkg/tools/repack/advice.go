// SPDX-License-Identifier: Apache-2.0

package repack

import "k8s.io/apimachinery/pkg/types"

// Advice is what to restart. Its JSON is an interface: fields and values may be added, never renamed.
type Advice struct {
	Driver string `json:"driver"`
	// GPUs are those of all nodes, WholeNow those of which nothing is allocated and all can be, on nodes that take pods. WholeThen
	// is the same after all steps.
	GPUs      int `json:"gpus"`
	WholeNow  int `json:"wholeGPUsFree"`
	WholeThen int `json:"wholeGPUsFreeThen"`
	// FragmentationNow and FragmentationThen are those of the nodes that take pods, the latter if of equally good nodes the first
	// are chosen.
	FragmentationNow  float64 `json:"fragmentation"`
	FragmentationThen float64 `json:"fragmentationThen"`
	// Steps are worth taking in their order: each frees GPUs by itself, and those with the fewest pods come first.
	Steps []Step `json:"steps"`
	// Kept are pods and claims on partly allocated GPUs that are not advised, by name.
	Kept []Kept `json:"notAdvised"`
	// Notes are about the cluster, Problems about what could not be read.
	Notes    []string `json:"notes,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Step is pods to restart one after the other, which together free GPUs.
type Step struct {
	// Cordon is a node to cordon until the replacements run: its GPU would attract them. Empty for none.
	Cordon string `json:"cordon,omitempty"`
	Pods   []Move `json:"pods"`
	Frees  []GPU  `json:"frees"`
}

// GPU is one of a node.
type GPU struct {
	Node string `json:"node"`
	Name string `json:"gpu"`
}

// Move is a pod to restart, and where its replacement would get devices.
type Move struct {
	Namespace  string    `json:"namespace"`
	Pod        string    `json:"pod"`
	UID        types.UID `json:"uid,omitempty"`
	Controller string    `json:"controller"`
	From       Place     `json:"from"`
	To         Place     `json:"to"`
	// Or are places on other nodes that may be as good: among these the scheduler chooses by CPU, memory and the like.
	Or []Place `json:"or,omitempty"`
	// Budget is the PodDisruptionBudget of the pod.
	Budget string `json:"podDisruptionBudget,omitempty"`
}

// Place is devices of a node, or none where earlier replacements decide which.
type Place struct {
	Node    string   `json:"node"`
	Devices []string `json:"devices"`
}

// Kept is a pod, or a claim that no pod uses, that is not advised.
type Kept struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod,omitempty"`
	Claim     string `json:"claim,omitempty"`
	Node      string `json:"node"`
	Reason    Reason `json:"reason"`
	// Message says more.
	Message string `json:"message"`
}

// Reason is why a pod is not advised.
type Reason string

// The reasons.
const (
	// Ending pods give their devices back anyway.
	Ending Reason = "Ending"
	// NoController: nothing would create the pod again.
	NoController Reason = "NoController"
	// DaemonSet pods come back to their node.
	DaemonSet Reason = "DaemonSet"
	// Job pods lose their work, and count as failed.
	Job Reason = "Job"
	// UnknownController: whether it creates the pod again is not known.
	UnknownController Reason = "UnknownController"
	// DoNotDisrupt is an annotation or label of the pod.
	DoNotDisrupt Reason = "DoNotDisrupt"
	// Budget is a PodDisruptionBudget that allows no disruption now.
	Budget Reason = "PodDisruptionBudget"
	// NamedClaim is a claim that outlives the pod, with its devices.
	NamedClaim Reason = "NamedClaim"
	// OtherDriver has devices for the pod, too.
	OtherDriver Reason = "OtherDriver"
	// Spread pods are to be spread.
	Spread Reason = "Spread"
	// OtherPods: where the pod can run depends on other pods.
	OtherPods Reason = "OtherPods"
	// Unpredictable is a claim that only the allocator can place.
	Unpredictable Reason = "Unpredictable"
	// Unused is a claim without a pod.
	Unused Reason = "Unused"
)
