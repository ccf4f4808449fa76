// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// pageSize is how many claims one list request returns.
const pageSize = 500

// Claims reads ResourceClaims.
type Claims struct {
	Client kubernetes.Interface
	// Pods, if set, notes the pods of each claim that is read by name.
	Pods *Pods
}

// Claim returns nil for a claim that does not exist. If the API server, or a proxy in front of it, does not serve the resource,
// that is an error: client-go marks answers that are not a Status of the API (rest.Request, transformResponse).
func (c Claims) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	claim, err := c.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return nil, nil //nolint:nilnil // absence is an ordinary answer
	}
	if err != nil {
		return nil, err
	}
	c.Pods.Saw(claim)
	return claim, nil
}

// ClaimByUID returns nil for a claim that does not exist. It lists claims.
func (c Claims) ClaimByUID(ctx context.Context, uid types.UID) (*resourceapi.ResourceClaim, error) {
	var found *resourceapi.ResourceClaim
	err := c.Each(ctx, func(claim *resourceapi.ResourceClaim) bool {
		if claim.UID == uid {
			found = claim
		}
		return found == nil
	})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	return found, nil
}

// Each calls a function for the claims of all namespaces, page by page, for as long as it returns true. Each claim that is there all
// the time is visited once, with its state at some time since the call: where pages take so long that the API server no longer has
// the version of the first, the others are of a later one (ListOptions of k8s.io/apimachinery/pkg/apis/meta/v1, Continue).
func (c Claims) Each(ctx context.Context, visit func(claim *resourceapi.ResourceClaim) bool) error {
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, opts)
		if later := laterVersion(err); later != "" && opts.Continue != "" {
			opts.Continue = later
			continue
		}
		if err != nil {
			return err
		}
		for i := range page.Items {
			if !visit(&page.Items[i]) {
				return nil
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return nil
		}
	}
}

// laterVersion is the token with which a list goes on in a later version; empty if it has not expired.
func laterVersion(err error) string {
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}
