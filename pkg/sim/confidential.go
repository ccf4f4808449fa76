// SPDX-License-Identifier: Apache-2.0

package sim

import "fmt"

// Confidential* is whether the GPUs of a node run in confidential computing mode, which a driver has only inside a
// confidential virtual machine, and whether they accept work there (nvml.h, NVML_CC_SYSTEM_FEATURE_*,
// NVML_CC_ACCEPTING_CLIENT_REQUESTS_*). In protected PCIe mode the feature is off (conf_compute_api.c, SystemGetCapabilities).
const (
	ConfidentialOff = iota
	ConfidentialNotReady
	ConfidentialReady
	ProtectedPCIeNotReady
	ProtectedPCIeReady
)

var confidentialModes = []string{"off", "not-ready", "ready", "protected-pcie-not-ready", "protected-pcie-ready"}

// ConfidentialModes lists the names of Confidential* for the command line.
func ConfidentialModes() []string { return confidentialModes }

// SetConfidential sets one of Confidential* for all GPUs of the node.
func (h Hardware) SetConfidential(mode int) error {
	if mode < 0 || mode >= len(confidentialModes) {
		return fmt.Errorf("no confidential computing mode %d: they are 0 to %d", mode, len(confidentialModes)-1)
	}
	return h.state.update(func(s *nodeState) error {
		s.Confidential = mode
		return nil
	})
}

// Confidential is the confidential computing state of a node.
type Confidential struct{ *Node }

// ConfidentialComputing reports whether the node's GPUs run in confidential computing mode (nvmlSystemGetConfComputeState:
// ccFeature; "for Ampere or newer").
func (n Confidential) ConfidentialComputing() (bool, error) {
	mode, err := n.mode("nvmlSystemGetConfComputeState")
	return mode == ConfidentialNotReady || mode == ConfidentialReady, err
}

// ProtectedPCIe reports whether they run in protected PCIe mode (nvmlSystemGetConfComputeSettings: multiGpuMode).
func (n Confidential) ProtectedPCIe() (bool, error) {
	mode, err := n.mode("nvmlSystemGetConfComputeSettings")
	return mode >= ProtectedPCIeNotReady, err
}

// AcceptsWork reports whether GPUs in confidential computing mode accept work (nvmlSystemGetConfComputeGpusReadyState).
func (n Confidential) AcceptsWork() (bool, error) {
	mode, err := n.mode("nvmlSystemGetConfComputeGpusReadyState")
	return mode == ConfidentialReady || mode == ProtectedPCIeReady, err
}

// mode is one of Confidential*, as a call reads it.
func (n Confidential) mode(call string) (int, error) {
	if err := n.enter(call, -1); err != nil {
		return 0, err
	}
	for i := range n.spec.Boards {
		if n.spec.Boards[i].ComputeCapability[0] < 8 {
			return 0, fail(call, CodeNotSupported, "%s is older than Ampere", n.spec.Boards[i].Product)
		}
	}
	st, err := n.state.load()
	if err != nil {
		return 0, err
	}
	return st.Confidential, nil
}
