// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// taint keeps replacements off a node. A cordon would be like that of an admin, who then would not know whose it is.
func (r *Repacker) taint(ctx context.Context, node string) error {
	r.Say("%s: taint %s", node, v1alpha1.RepackKey)
	return r.setTaints(ctx, node, func(taints []corev1.Taint) []corev1.Taint {
		return append(slices.DeleteFunc(taints, repack.IsTaint), corev1.Taint{Key: v1alpha1.RepackKey, Effect: corev1.TaintEffectNoSchedule})
	})
}

// untaint takes the taint away.
func (r *Repacker) untaint(ctx context.Context, nodes ...string) error {
	for _, node := range nodes {
		err := r.setTaints(ctx, node, func(taints []corev1.Taint) []corev1.Taint { return slices.DeleteFunc(taints, repack.IsTaint) })
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		r.Say("%s: no taint anymore", node)
	}
	return nil
}

// setTaints changes the taints of a node, which are one list to the API server (NodeSpec: atomic), in the version that was read.
func (r *Repacker) setTaints(ctx context.Context, name string, change func([]corev1.Taint) []corev1.Taint) error {
	opts := metav1.PatchOptions{}
	if r.DryRun {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := r.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": change(slices.Clone(node.Spec.Taints))},
		})
		if err != nil {
			return err
		}
		_, err = r.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, opts)
		return err
	})
	if err != nil {
		return fmt.Errorf("set taint %s of node %s: %w", v1alpha1.RepackKey, name, err)
	}
	return nil
}
