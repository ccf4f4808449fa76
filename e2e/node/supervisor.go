// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/cleave-dra/cleave/pkg/mps"
)

// MPSDir is the directory of the MPS supervisor.
func (n *Node) MPSDir() string { return filepath.Join(n.opts.Dir, "mps") }

func (n *Node) mpsSocket() string { return filepath.Join(n.MPSDir(), mps.SocketName) }

// SupervisorLog is the file of the MPS supervisor's log.
func (n *Node) SupervisorLog() string { return filepath.Join(n.opts.Dir, "mps.log") }

// StartSupervisor starts the MPS supervisor and waits until it answers. It outlives this program as the plugin does.
func (n *Node) StartSupervisor(ctx context.Context) error {
	var err error
	if n.supervisor, err = n.launch(n.SupervisorLog(), []string{
		"mps-supervisor", "--dir", n.MPSDir(), "--driver-root", n.Root(), "--v", "4",
	}); err != nil {
		return err
	}
	client, err := mps.Dial(n.mpsSocket())
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return n.supervisor.WaitReady(ctx, client.Available)
}

// SupervisorPID is the process ID of the supervisor, 0 while none runs.
func (n *Node) SupervisorPID() int { return n.supervisor.PID() }

// StopSupervisor asks the supervisor to end and waits for it; its servers go on.
func (n *Node) StopSupervisor() error { return end(&n.supervisor, syscall.SIGTERM) }

// KillSupervisor ends the supervisor as a crash does.
func (n *Node) KillSupervisor() error { return end(&n.supervisor, syscall.SIGKILL) }
