// SPDX-License-Identifier: Apache-2.0

package supervisor

import "os"

// fakeProcess is a daemon in memory.
type fakeProcess struct {
	h        *fakeHost
	id       ProcessID
	gpu      string
	done     chan struct{}
	ready    bool
	withhold int // ways to end it that it withstands
	// forgotten: nobody hears of its end, or can end it.
	forgotten bool
}

func (p *fakeProcess) ID() ProcessID         { return p.id }
func (p *fakeProcess) Done() <-chan struct{} { return p.done }
func (p *fakeProcess) How() string           { return "signal: killed" }
func (p *fakeProcess) Forget()               { p.h.locked(func() { p.forgotten = true }) }
func (p *fakeProcess) Terminate() error      { return p.h.end(p, "SIGTERM") }
func (p *fakeProcess) Kill() error           { return p.h.end(p, "SIGKILL") }

// end ends a process, if it does not withstand.
func (h *fakeHost) end(p *fakeProcess, way string) error {
	return step(h.step).around("ending a daemon by "+way, func() (err error) {
		h.locked(func() {
			if p.forgotten {
				err = os.ErrClosed
			} else if p.withhold--; p.withhold < 0 {
				h.die(p)
			}
		})
		return err
	})
}

// die is the end of a process; the lock is held.
func (h *fakeHost) die(p *fakeProcess) {
	if h.processes[p.id.PID] == p {
		delete(h.processes, p.id.PID)
		if !p.forgotten {
			close(p.done)
		}
	}
}
