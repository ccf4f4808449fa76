// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Forwarder passes pods' connections on to the API server, which listens on the loopback address alone.
type Forwarder struct {
	// Port is where it listens.
	Port string

	to       string
	listener net.Listener
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu sync.Mutex
	// delay is what every piece of data is late by.
	delay time.Duration
	// open is closed unless the network is cut.
	open chan struct{}
}

// Forward listens on an address of this machine, which it need not have yet, until Stop.
func Forward(ctx context.Context, address, to string) (*Forwarder, error) {
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	listener, err := free.Listen(ctx, "tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for pods that want the API server: %w", err)
	}
	f := &Forwarder{listener: listener, to: to, open: make(chan struct{})}
	close(f.open)
	ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx)) // Stop ends it
	_, f.Port, _ = net.SplitHostPort(listener.Addr().String())
	f.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { f.pass(ctx, c) })
		}
	})
	return f, nil
}

// Delay makes all that comes from now on late, in both directions; 0 ends that.
func (f *Forwarder) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Cut keeps back all that comes from now on, without a word to either side, until Mend.
func (f *Forwarder) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.open:
		f.open = make(chan struct{})
	default: // cut already
	}
}

// Mend ends Cut: what was kept back arrives.
func (f *Forwarder) Mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.open:
	default:
		close(f.open)
	}
}

// Stop ends the listener and all connections.
func (f *Forwarder) Stop() {
	f.cancel()
	_ = f.listener.Close() // its only user ends with it
	f.wg.Wait()
}

func (f *Forwarder) pass(ctx context.Context, from net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = from.Close() }()
	to, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		f.wg.Go(func() {
			f.copy(ctx, way[1], way[0])
			ended <- struct{}{}
		})
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// piece of data, and when it is due.
type piece struct {
	data []byte
	due  time.Time
	open <-chan struct{}
}

// copy passes data on, as late as it is to be. What is under way is bounded.
func (f *Forwarder) copy(ctx context.Context, to, from net.Conn) {
	pieces := make(chan piece, 64)
	f.wg.Go(func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				f.mu.Lock()
				p := piece{buffer[:n], time.Now().Add(f.delay), f.open}
				f.mu.Unlock()
				select {
				case pieces <- p:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range pieces {
		if !p.wait(ctx) {
			return
		}
		if _, err := to.Write(p.data); err != nil {
			return
		}
	}
}

// wait waits until the piece is due and the network not cut, and reports whether ctx goes on.
func (p piece) wait(ctx context.Context) bool {
	select {
	case <-p.open:
	case <-ctx.Done():
		return false
	}
	late := time.NewTimer(time.Until(p.due))
	defer late.Stop()
	select {
	case <-late.C:
		return true
	case <-ctx.Done():
		return false
	}
}
