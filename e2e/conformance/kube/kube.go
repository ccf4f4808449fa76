// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// ownerLabel is on the namespace: one without it is not the suite's, and is not touched.
const ownerLabel = "dra-conformance"

// poll is how often a condition is looked at.
const poll = 50 * time.Millisecond

// Cluster is the API server, seen from one driver on one node.
type Cluster struct {
	Client kubernetes.Interface
	// Namespace holds all that the suite creates.
	Namespace string
	// Node and Driver are under test.
	Node, Driver string
}

// Until waits until done says yes or fails, or ctx ends. state says what was seen last.
func Until(ctx context.Context, what string, done func(context.Context) (ok bool, state string, err error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	// Without the deadline: close to it, the rate limiter of a client fails calls with an error of its own.
	calls := context.WithoutCancel(ctx)
	for {
		ok, state, err := done(calls)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last seen: %s", what, ctx.Err(), state)
		case <-tick.C:
		}
	}
}

// CreateNamespace creates the namespace of the suite, in which claims may ask for admin access.
func (c *Cluster) CreateNamespace(ctx context.Context) error {
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: c.Namespace, Labels: map[string]string{ownerLabel: "true", resourceapi.DRAAdminNamespaceLabelKey: "true"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", c.Namespace, err)
	}
	return nil
}

// Leftovers are the claims of an earlier run that was interrupted; a namespace that is not the suite's is an error.
func (c *Cluster) Leftovers(ctx context.Context) ([]resourceapi.ResourceClaim, error) {
	namespace, err := c.Client.CoreV1().Namespaces().Get(ctx, c.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read namespace %s: %w", c.Namespace, err)
	}
	if namespace.Labels[ownerLabel] != "true" {
		return nil, fmt.Errorf("use namespace %s: it exists and is not the suite's (no label %s=true); choose another one", c.Namespace,
			ownerLabel)
	}
	list, err := c.Client.ResourceV1().ResourceClaims(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims of namespace %s: %w", c.Namespace, err)
	}
	return list.Items, nil
}

// DeleteNamespace deletes the namespace with all that is in it and waits until it is gone.
func (c *Cluster) DeleteNamespace(ctx context.Context) error {
	namespaces := c.Client.CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, c.Namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", c.Namespace, err)
	}
	return Until(ctx, "namespace "+c.Namespace+" to go", func(ctx context.Context) (bool, string, error) {
		namespace, err := namespaces.Get(ctx, c.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		return false, string(namespace.Status.Phase), nil
	})
}

// Create creates a claim in the suite's namespace.
func (c *Cluster) Create(ctx context.Context, name string, spec resourceapi.ResourceClaimSpec) (*resourceapi.ResourceClaim, error) {
	claim, err := c.Client.ResourceV1().ResourceClaims(c.Namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{ownerLabel: "true"}}, Spec: spec,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim %s: %w", name, err)
	}
	return claim, nil
}

// Allocate writes an allocation to a claim. Nothing reserves it, so that no kubelet prepares it.
func (c *Cluster) Allocate(ctx context.Context, claim *resourceapi.ResourceClaim,
	allocation resourceapi.AllocationResult) (*resourceapi.ResourceClaim, error) {
	claim = claim.DeepCopy()
	claim.Status.Allocation = &allocation
	allocated, err := c.Client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("allocate claim %s: %w", claim.Name, err)
	}
	return allocated, nil
}

// Claim reads a claim.
func (c *Cluster) Claim(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read claim %s: %w", name, err)
	}
	return claim, nil
}

// Delete deletes a claim and waits until it is gone. One that is gone already is no error.
func (c *Cluster) Delete(ctx context.Context, name string, uid types.UID) error {
	claims := c.Client.ResourceV1().ResourceClaims(c.Namespace)
	err := claims.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another one by now
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete claim %s: %w", name, err)
	}
	return Until(ctx, "claim "+name+" to go", func(ctx context.Context) (bool, string, error) {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, "", nil
		}
		if err != nil {
			return false, "", err
		}
		return claim.UID != uid, fmt.Sprintf("finalizers %q", claim.Finalizers), nil
	})
}

// ServerVersion is the version of the API server.
func (c *Cluster) ServerVersion() (string, error) {
	info, err := c.Client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("read the version of the API server: %w", err)
	}
	return info.GitVersion, nil
}

// CheckNode reports a node that does not exist.
func (c *Cluster) CheckNode(ctx context.Context) error {
	_, err := c.node(ctx)
	return err
}

func (c *Cluster) node(ctx context.Context) (*corev1.Node, error) {
	node, err := c.Client.CoreV1().Nodes().Get(ctx, c.Node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", c.Node, err)
	}
	return node, nil
}

func (c *Cluster) classes(ctx context.Context) (classes, error) {
	list, err := c.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list DeviceClasses: %w", err)
	}
	var all classes
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// CheckClass reports a DeviceClass that does not exist.
func (c *Cluster) CheckClass(ctx context.Context, name string) error {
	all, err := c.classes(ctx)
	if err != nil {
		return err
	}
	_, err = all.Get(name)
	return err
}

// classes are the cluster's, for the allocator.
type classes []*resourceapi.DeviceClass

// List returns them all.
func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

// Get returns one by name.
func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("find DeviceClass %s: %w", name, errNoClass)
}

var errNoClass = errors.New("there is none")
