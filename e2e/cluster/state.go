// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// state is what Open needs to know about a cluster that Up has made. It is
// written before anything is started.
type state struct {
	Version      string          `json:"version"`
	BinDir       string          `json:"binDir"`
	NodeName     string          `json:"nodeName"`
	Nodes        int             `json:"nodes"`
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	Runtime      []string        `json:"runtimeConfig,omitempty"`
	Environment  []string        `json:"environment,omitempty"`
	ControlPlane bool            `json:"controlPlane,omitempty"`
	NRI          bool            `json:"nri,omitempty"`
	Ports        ports           `json:"ports"`
	Host         host            `json:"host"`
}

func (s state) kubernetesDir() string { return filepath.Join(s.BinDir, "v"+s.Version) }
func (s state) toolsDir() string      { return filepath.Join(s.BinDir, "tools") }

// components are those that run, in the order in which they start.
func (s state) components() []Component {
	if s.ControlPlane {
		return []Component{Etcd, APIServer}
	}
	return Components()
}

// apiServerHost is where the API server listens: several nodes cannot reach this machine's loopback address.
func (s state) apiServerHost() string {
	if s.several() {
		return linkAddress(1)
	}
	return loopback
}

func (s state) apiServer() string {
	return net.JoinHostPort(s.apiServerHost(), strconv.Itoa(s.Ports.APIServer))
}

func readState(l layout) (state, error) {
	var s state
	data, err := os.ReadFile(l.state())
	if err != nil {
		return s, fmt.Errorf("read the state of the cluster: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("decode %s: %w", l.state(), err)
	}
	return s, nil
}

func writeState(l layout, s state) error {
	return writeJSON(l.state(), s)
}

// writeJSON replaces a file as a whole: a reader never sees half of it.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeFile(path, append(data, '\n'))
}

func writeFile(path string, data []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
