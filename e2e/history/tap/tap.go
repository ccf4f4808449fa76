// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/history"
)

// poll is how often the plugin's directory is looked at. The kubelet learns so much later of a registration.
const poll = 25 * time.Millisecond

// Options of a tap.
type Options struct {
	// PluginRegistry is the directory in which the plugin registers, in place of the kubelet's.
	PluginRegistry string
	// KubeletRegistry is that of the kubelet.
	KubeletRegistry string
	// Dir is for the tap's sockets. Its path has to be short, as those of sockets must be.
	Dir string
	// HostPath is where this program finds what a path leads to for the kubelet and the plugin; nil where that is the same path.
	HostPath func(string) string
}

// Tap stands between a kubelet and its plugins. It records while a recorder has it as a source, and connects them before and
// after, too.
type Tap struct {
	opts   Options
	cancel context.CancelFunc
	done   sync.WaitGroup

	recorder    atomic.Pointer[history.Recorder]
	connections atomic.Int64
	// mirrors by the name of the registration socket.
	mirrors map[string]*mirror
}

// Start begins to connect. It goes on until Close, whatever becomes of the context of a recorder.
func Start(ctx context.Context, opts Options) (*Tap, error) {
	if opts.HostPath == nil {
		opts.HostPath = func(path string) string { return path }
	}
	for _, dir := range []string{opts.HostPath(opts.PluginRegistry), opts.HostPath(opts.Dir)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, fmt.Errorf("create a directory of the tap: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &Tap{opts: opts, cancel: cancel, mirrors: map[string]*mirror{}}
	t.done.Go(func() { t.run(ctx) })
	return t, nil
}

// Close ends all connections and takes the registrations away.
func (t *Tap) Close() {
	t.cancel()
	t.done.Wait()
}

// Run records until ctx ends.
func (t *Tap) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	t.recorder.Store(r)
	defer t.recorder.Store(nil)
	ready()
	<-ctx.Done()
	return nil
}

func (t *Tap) record(fact history.Fact) {
	if r := t.recorder.Load(); r != nil {
		r.Add(fact)
	}
}

func (t *Tap) fail(err error) {
	if r := t.recorder.Load(); r != nil && err != nil {
		r.Fail(err)
	}
}

// run keeps the kubelet's directory like the plugin's.
func (t *Tap) run(ctx context.Context) {
	defer func() {
		for _, m := range t.mirrors {
			m.close()
		}
	}()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		t.compare(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// identity distinguishes a socket from another of the same name.
type identity struct {
	inode   uint64
	changed syscall.Timespec
}

func (t *Tap) compare(ctx context.Context) {
	entries, err := os.ReadDir(t.opts.HostPath(t.opts.PluginRegistry))
	if err != nil {
		return // it is looked at again
	}
	there := map[string]bool{}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue
		}
		st, _ := info.Sys().(*syscall.Stat_t)
		id := identity{st.Ino, st.Ctim}
		there[e.Name()] = true
		if m := t.mirrors[e.Name()]; m != nil && m.of == id {
			continue
		} else if m != nil {
			m.close()
			delete(t.mirrors, e.Name())
		}
		m := &mirror{tap: t, of: id, name: e.Name()}
		if m.open(ctx) == nil { // else again at the next look
			t.mirrors[e.Name()] = m
		}
	}
	for name, m := range t.mirrors {
		if !there[name] {
			m.close()
			delete(t.mirrors, name)
		}
	}
}

func (t *Tap) pluginSocket(name string) string {
	return t.opts.HostPath(filepath.Join(t.opts.PluginRegistry, name))
}

func (t *Tap) kubeletSocket(name string) string {
	return t.opts.HostPath(filepath.Join(t.opts.KubeletRegistry, name))
}
