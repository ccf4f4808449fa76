// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Values of a node label under which a DaemonSet of clients selects nodes. Only a label with the first value is changed, and only to the
// second and back. The second must not contain "paused-for-": with that, components of the GPU operator ask for the driver.
const (
	ClientsDeployed = "true"
	ClientsPaused   = "paused-by-cleave"
)

// MaxClientLabels bounds the labels of clients in a rule.
const MaxClientLabels = 16

// notClients are labels under which more than clients selects nodes: the driver, the container toolkit, which takes its runtime along,
// all of the GPU operator, and Cleave itself.
var notClients = []string{
	"nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.deploy.container-toolkit", "nvidia.com/gpu.deploy.operands", "nvidia.com/gpu.present",
}

// CheckClientLabel rejects what is not the name of a label under which only clients of GPUs select nodes.
func CheckClientLabel(label string) error {
	domain, _, qualified := strings.Cut(label, "/")
	within := func(parent string) bool { return domain == parent || strings.HasSuffix(domain, "."+parent) }
	switch msgs := validation.IsQualifiedName(label); {
	case len(msgs) > 0:
		return fmt.Errorf("is not a valid label name: %s", strings.Join(msgs, "; "))
	case !qualified:
		return errors.New("must have a domain, such as nvidia.com/gpu.deploy.dcgm")
	case within("kubernetes.io") || within("k8s.io") || within(Group) || slices.Contains(notClients, label):
		return errors.New("is a label of more than clients of GPUs")
	}
	return nil
}

// validateClients checks the labels of clients.
func (r *Rule) validateClients(path *field.Path) field.ErrorList {
	if len(r.PauseClients) > MaxClientLabels {
		return field.ErrorList{field.TooMany(path, len(r.PauseClients), MaxClientLabels)}
	}
	var errs field.ErrorList
	for i, label := range r.PauseClients {
		if err := CheckClientLabel(label); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), label, err.Error()))
		}
		if slices.Contains(r.PauseClients[:i], label) {
			errs = append(errs, field.Duplicate(path.Index(i), label))
		}
	}
	return errs
}
