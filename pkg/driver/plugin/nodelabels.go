// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"github.com/cleave-dra/cleave/pkg/domain/nodelabels"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// LabelMode is what the plugin does with the labels of its Node object that describe the GPUs.
type LabelMode string

// The modes. Only LabelsOff needs no right to patch the Node.
const (
	LabelsOff LabelMode = "none"
	// LabelsApply writes them.
	LabelsApply LabelMode = "apply"
	// LabelsRemove removes those that a plugin has written: before an uninstallation, or before LabelsOff.
	LabelsRemove LabelMode = "remove"
)

// LabelModes lists the modes for people.
func LabelModes() string {
	return fmt.Sprintf("%s, %s, or %s for those that were applied", LabelsOff, LabelsApply, LabelsRemove)
}

func (m LabelMode) validate() error {
	switch m {
	case "", LabelsOff, LabelsApply, LabelsRemove:
		return nil
	}
	return fmt.Errorf("--node-labels %q: there are %s", string(m), LabelModes())
}

// openLabels prepares to write or remove the labels.
func (s *service) openLabels() {
	if s.config.NodeLabels != LabelsApply && s.config.NodeLabels != LabelsRemove {
		return
	}
	s.labels = cluster.NewLabels(s.cluster, func(others int) { s.metrics.labelsOfOthers.Set(float64(others)) })
	if s.config.NodeLabels == LabelsRemove {
		s.labels.Want(map[string]string{})
	}
}

// The reason of Events about labels of clients that cannot be changed.
const reasonNotPaused = "ClientsLabelNotSet" // a label by which clients of GPUs are stopped could not be changed

// openClients prepares to stop clients of GPUs by labels; nil if the plugin may change none.
func openClients(s *service) *cluster.Clients {
	if len(s.config.PauseClients) == 0 {
		return nil
	}
	return cluster.NewClients(s.cluster, s.config.PauseClients, func(err error) { s.events.Warn(reasonNotPaused, err.Error()) })
}

// describe sets the labels of what the GPUs offer.
func (s *service) describe(offered *policy.Node) {
	if s.config.NodeLabels == LabelsApply {
		s.labels.Want(nodelabels.Of(offered))
	}
}
