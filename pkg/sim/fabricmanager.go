// SPDX-License-Identifier: Apache-2.0

package sim

import "errors"

// Fabric Manager is a process of the node, with the name that the kernel gives it.
const (
	managerProc    = "proc/1789"
	stashedManager = stateDir + "/fabric-manager"
)

// SetFabricManager starts the Fabric Manager of a node with NVSwitches, or ends it. GPUs from Hopper on stay registered without it.
func (h Hardware) SetFabricManager(running bool) error {
	if len(h.spec.NVSwitches) == 0 {
		return errors.New("no Fabric Manager: the node has no NVSwitches")
	}
	return h.state.update(func(s *nodeState) error { return h.setFabricManager(s, running) })
}

func (c *core) setFabricManager(s *nodeState, running bool) error {
	s.NoFabricManager = !running
	if running {
		return c.files.moveProc(stashedManager, managerProc)
	}
	return c.files.moveProc(managerProc, stashedManager)
}
