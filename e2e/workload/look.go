// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// poll is how often a condition is looked at.
const poll = 100 * time.Millisecond

// Until waits until done says yes or fails, but for what may pass, or ctx ends. what completes "wait for …", state says what was seen last.
func Until(ctx context.Context, what string, done func(context.Context) (ok bool, state string, err error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		ok, state, err := done(ctx)
		if err != nil && ctx.Err() == nil && !mayPass(err) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if err != nil {
			state = err.Error()
		} else if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last seen: %s", what, ctx.Err(), state)
		case <-tick.C:
		}
	}
}

// mayPass reports whether an error says that the API server, or the way to it, was too slow: the next look may be answered.
func mayPass(err error) bool {
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || utilnet.IsTimeout(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// Client is what this package asks of a cluster.
type Client struct {
	Cluster *cluster.Cluster
	Kube    kubernetes.Interface
}

// Up starts a cluster.
func Up(ctx context.Context, opts cluster.Options) (Client, error) {
	c, err := cluster.Up(ctx, opts)
	if err != nil {
		return Client{}, err
	}
	kube, err := c.Client()
	return Client{Cluster: c, Kube: kube}, err
}

// CreateFile creates the objects of a manifest in a namespace.
func (c Client) CreateFile(ctx context.Context, namespace, path string) error {
	objects, err := Load(path)
	if err != nil {
		return err
	}
	return Create(ctx, c.Kube, namespace, objects)
}

// WaitSlices waits until a driver has published the pool of the cluster's node, of which pool has to be true if it is
// not nil, and returns its slices.
func (c Client) WaitSlices(ctx context.Context, driver string, pool func([]resourceapi.ResourceSlice) bool) error {
	selector := resourceapi.ResourceSliceSelectorDriver + "=" + driver + "," +
		resourceapi.ResourceSliceSelectorNodeName + "=" + c.Cluster.NodeName()
	return Until(ctx, "ResourceSlices of "+driver, func(ctx context.Context) (bool, string, error) {
		list, err := c.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return false, "", err
		}
		complete := len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount
		return complete && (pool == nil || pool(list.Items)), fmt.Sprintf("%d slices", len(list.Items)), nil
	})
}

// WaitGone waits until a pod, or all pods of a namespace for the name "", are gone.
func (c Client) WaitGone(ctx context.Context, namespace, name string) error {
	return Until(ctx, "pod "+name+" to go", func(ctx context.Context) (bool, string, error) {
		list, err := c.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		var left []string
		for i := range list.Items {
			if p := &list.Items[i]; name == "" || p.Name == name {
				left = append(left, p.Name+": "+Describe(p))
			}
		}
		return len(left) == 0, strings.Join(left, "\n"), nil
	})
}

// WaitNoClaims waits until there is no claim in a namespace, or in all of them for "".
func (c Client) WaitNoClaims(ctx context.Context, namespace string) error {
	return Until(ctx, "the claims to go", func(ctx context.Context) (bool, string, error) {
		list, err := c.Kube.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(list.Items) == 0, fmt.Sprintf("%d claims", len(list.Items)), nil
	})
}

// WaitEvent waits for an Event of a reason on an object whose message has all parts.
func (c Client) WaitEvent(ctx context.Context, namespace, object, reason string, parts ...string) error {
	return Until(ctx, fmt.Sprintf("Event %s on %s with %q", reason, object, parts), func(ctx context.Context) (bool, string, error) {
		events, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
		if err != nil {
			return false, "", err
		}
		var all []string
		for _, e := range events.Items {
			all = append(all, e.Reason+": "+e.Message)
			if e.Reason == reason && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e.Message, p) }) {
				return true, "", nil
			}
		}
		return false, strings.Join(all, "\n"), nil
	})
}

// WaitPod waits until a pod is as it has to be, and returns it. what completes "wait for pod …".
func (c Client) WaitPod(ctx context.Context, namespace, name, what string, done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := Until(ctx, "pod "+namespace+"/"+name+" "+what, func(ctx context.Context) (ok bool, _ string, err error) {
		if pod, err = c.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, "", err
		}
		ok, err = done(pod)
		return ok, Describe(pod), err
	})
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, c.podEvents(context.WithoutCancel(ctx), namespace, name))
	}
	return pod, nil
}

// WaitRunning waits until all containers of a pod run and returns the pod.
func (c Client) WaitRunning(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return c.WaitPod(ctx, namespace, name, "to run", func(pod *corev1.Pod) (bool, error) {
		if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			return false, fmt.Errorf("it ended: %s", Describe(pod))
		}
		return pod.Status.Phase == corev1.PodRunning && len(pod.Status.ContainerStatuses) == len(pod.Spec.Containers) &&
			!slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running == nil }), nil
	})
}

// WaitEnded waits until the first container of a pod has ended, and fails if the pod is gone.
func (c Client) WaitEnded(ctx context.Context, namespace, name string) error {
	_, err := c.WaitPod(ctx, namespace, name, "to have its container end", func(pod *corev1.Pod) (bool, error) {
		return len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Terminated != nil, nil
	})
	return err
}

// Undisturbed is what differs in the containers of a pod that runs from what they were before; empty if nothing does.
func (c Client) Undisturbed(ctx context.Context, before *corev1.Pod) (diff string, err error) {
	after, err := c.WaitRunning(ctx, before.Namespace, before.Name)
	if err != nil {
		return "", err
	}
	// What the kubelet knows of their devices' health comes and goes with the plugin.
	return cmp.Diff(before.Status.ContainerStatuses, after.Status.ContainerStatuses,
		cmpopts.IgnoreFields(corev1.ContainerStatus{}, "AllocatedResourcesStatus")), nil
}

// podEvents are the warnings about a pod, for an error message.
func (c Client) podEvents(ctx context.Context, namespace, name string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + name})
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, e := range list.Items {
		fmt.Fprintf(&b, "\n  %s: %s", e.Reason, e.Message)
	}
	return b.String()
}

// Describe says in a line how a pod is.
func Describe(pod *corev1.Pod) string {
	state := string(pod.Status.Phase)
	for _, cond := range pod.Status.Conditions {
		if cond.Status == corev1.ConditionFalse && cond.Message != "" {
			state += "; " + cond.Reason + ": " + cond.Message
		}
	}
	return state
}

// Allocated is one device of a pod.
type Allocated struct {
	Claim, Class, Request, Device, UUID string
}

// Devices lists the devices that a pod's claims were allocated, its extended resources among them.
func (c Client) Devices(ctx context.Context, pod *corev1.Pod) ([]Allocated, error) {
	uuids, err := c.uuids(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	for _, r := range pod.Spec.ResourceClaims {
		if r.ResourceClaimName != nil {
			names = append(names, *r.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	slices.Sort(names)
	var found []Allocated
	for _, name := range slices.Compact(names) {
		claim, err := c.Kube.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read claim %s of pod %s: %w", name, pod.Name, err)
		}
		found = append(found, allocated(claim, uuids)...)
	}
	return found, nil
}

func allocated(claim *resourceapi.ResourceClaim, uuids map[string]string) []Allocated {
	if claim.Status.Allocation == nil {
		return nil
	}
	classes := map[string]string{}
	for _, r := range claim.Spec.Devices.Requests {
		if r.Exactly != nil {
			classes[r.Name] = r.Exactly.DeviceClassName
		}
	}
	var found []Allocated
	for _, r := range claim.Status.Allocation.Devices.Results {
		uuid := explain.UUID(claim, &r) // also of a partition, which is none until it is created
		if uuid == "" {
			uuid = uuids[r.Pool+"/"+r.Device]
		}
		found = append(found, Allocated{claim.Name, classes[r.Request], r.Request, r.Device, uuid})
	}
	return found
}

// uuids maps "pool/device" to the UUID that is published for it.
func (c Client) uuids(ctx context.Context) (map[string]string, error) {
	list, err := c.Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	uuids := map[string]string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if uuid := d.Attributes["uuid"].StringValue; uuid != nil {
				uuids[s.Spec.Pool.Name+"/"+d.Name] = *uuid
			}
		}
	}
	return uuids, nil
}

// Seen is what a container printed of what it sees.
type Seen struct {
	// DeviceNodes below /dev, GPUs' and control nodes, sorted.
	DeviceNodes []string
	// Environment of NVIDIA, CUDA and Cleave, sorted.
	Environment []string
	// Libraries of the driver that were looked for and found.
	Libraries []string
}

// GPUNodes are the device nodes of GPUs alone: /dev/nvidia0 and so on.
func (s Seen) GPUNodes() []string {
	var nodes []string
	for _, n := range s.DeviceNodes {
		if rest, ok := strings.CutPrefix(n, "/dev/nvidia"); ok && rest != "" && strings.Trim(rest, "0123456789") == "" {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// Look waits until a container has printed what it sees and returns it.
func (c Client) Look(ctx context.Context, namespace, pod, container string) (Seen, error) {
	var log string
	err := Until(ctx, "container "+container+" of pod "+namespace+"/"+pod+" to look around", func(ctx context.Context) (bool, string, error) {
		text, err := c.Cluster.PodLogs(ctx, namespace, pod, container)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the log appears with the container
		}
		log = text
		return strings.Contains(text, lookEnd), text, nil
	})
	if err != nil {
		return Seen{}, err
	}
	return seen(log), nil
}

// LookInside looks around in a container that runs its own command, which needs a shell.
func (c Client) LookInside(ctx context.Context, namespace, pod, container string) (Seen, error) {
	out, err := c.Kubectl(ctx, "", "--namespace", namespace, "exec", pod, "--container", container, "--", "sh", "-c", looking)
	if err != nil {
		return Seen{}, err
	}
	if !strings.Contains(out, lookEnd) {
		return Seen{}, fmt.Errorf("look around in pod %s/%s: it printed %q", namespace, pod, out)
	}
	return seen(out), nil
}

// WaitEstablished waits until a kind of objects is served. (kubectl wait fails while its CustomResourceDefinition has no conditions.)
func (c Client) WaitEstablished(ctx context.Context, definition string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return Until(ctx, definition+" to be established", func(ctx context.Context) (bool, string, error) {
		out, err := c.Kubectl(ctx, "", "get", "crd", definition, "-o",
			`go-template={{range .status.conditions}}{{if eq .type "Established"}}{{.status}}{{end}}{{end}}`) // there may be none yet
		return out == "True", out, err
	})
}

// Kubectl runs kubectl with something on its standard input and returns all that it prints, warnings too.
func (c Client) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, c.Cluster.Kubectl(), append([]string{"--kubeconfig", c.Cluster.Kubeconfig()}, args...)...)
	command.Stdin = strings.NewReader(input)
	out, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// seen reads what looking printed.
func seen(text string) Seen {
	var s Seen
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "/dev/"):
			s.DeviceNodes = append(s.DeviceNodes, line)
		case strings.HasPrefix(line, "/usr/lib/"):
			s.Libraries = append(s.Libraries, line)
		case strings.Contains(line, "="):
			s.Environment = append(s.Environment, line)
		}
	}
	slices.Sort(s.DeviceNodes)
	return s
}

// Capabilities are the device nodes that let a container at a partition, two for each.
func (s Seen) Capabilities() []string {
	var nodes []string
	for _, n := range s.DeviceNodes {
		if strings.HasPrefix(n, "/dev/nvidia-caps/") {
			nodes = append(nodes, n)
		}
	}
	return nodes
}
