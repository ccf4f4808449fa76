// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// Supervisor is the MPS supervisor of a node.
type Supervisor struct {
	node    *Node
	program *process.Program
}

// Dir is its directory.
func (s *Supervisor) Dir() string { return filepath.Join(s.node.opts.Dir, "mps") }

func (s *Supervisor) socket() string { return filepath.Join(s.Dir(), mps.SocketName) }

// Start starts the supervisor and waits until it answers. It outlives this program as the plugin does.
func (s *Supervisor) Start(ctx context.Context) error {
	var err error
	if s.program, err = s.node.launch(filepath.Join(s.node.opts.Dir, "mps.log"), []string{
		"mps-supervisor", "--dir", s.Dir(), "--driver-root", s.node.Root(), "--v", "4",
	}); err != nil {
		return err
	}
	client, err := mps.Dial(s.socket())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return s.program.WaitReady(ctx, client.Available)
}

// PID is its process ID, 0 while none runs.
func (s *Supervisor) PID() int { return s.program.PID() }

// Stop asks the supervisor to end and waits for it; its servers go on.
func (s *Supervisor) Stop() error { return end(&s.program, syscall.SIGTERM) }

// Kill ends the supervisor as a crash does.
func (s *Supervisor) Kill() error { return end(&s.program, syscall.SIGKILL) }
