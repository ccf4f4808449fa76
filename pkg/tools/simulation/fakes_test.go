// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/deployments/manifests"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// poolOf is nodes of a model under the built-in policy.
func poolOf(t testing.TB, model string, nodes int) Pool {
	t.Helper()
	inventory, err := models.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	classes, err := manifests.Classes()
	if err != nil {
		t.Fatal(err)
	}
	return Pool{
		Model: model, Nodes: nodes, Node: policy.Apply(&v1alpha1.NodePolicy{}, inventory, policy.Capabilities{}), Driver: v1alpha1.Group, Classes: classes,
	}
}

// kindOf is pods of a class, so many at a time.
func kindOf(name, class string, count int64, running int) Pods {
	return Pods{Name: name, DeviceClassName: class, Count: count, Running: running, Lifetime: metav1.Duration{Duration: time.Hour}}
}

// mixOf is for a pool of four nodes of hgx-h100.
func mixOf(t *testing.T) *Workload {
	t.Helper()
	return &Workload{Duration: metav1.Duration{Duration: 2 * time.Hour}, Pods: []Pods{
		kindOf("train", "gpu.cleave.dev", 8, 1),
		kindOf("serve", "mig-1g.10gb.cleave.dev", 1, 30),
		kindOf("wide", "mig-4g.40gb.cleave.dev", 1, 6),
		kindOf("notebook", "timeslice.cleave.dev", 1, 8),
	}}
}
