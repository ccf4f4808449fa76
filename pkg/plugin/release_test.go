// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cdi"
	"github.com/cleave-dra/cleave/pkg/claims"
	"github.com/cleave-dra/cleave/pkg/records"
)

// releaseBed is a plugin on a node whose driver is a library and a file of procfs.
type releaseBed struct {
	*service
	t        *testing.T
	recorder *record.FakeRecorder
}

func newReleaseBed(t *testing.T) *releaseBed {
	t.Helper()
	dir := t.TempDir()
	b := &releaseBed{t: t, recorder: record.NewFakeRecorder(100)}
	b.service = &service{
		config: Config{NodeName: "node-1", DriverName: "gpu.cleave.dev", NVMLLibrary: filepath.Join(dir, "libnvidia-ml.so.1"), Procfs: dir, Sysfs: dir,
			DriverRoot: dir, PluginsDir: dir, DriverRetry: time.Hour},
		metrics: newMetrics(), events: &nodeEvents{recorder: b.recorder, node: &corev1.ObjectReference{}},
		outside: make(chan struct{}, 1),
	}
	b.around = newSurroundings(fake.NewClientset(), "gpu.cleave.dev", "node-1", func() { signal(b.outside) })
	store, storeErr := records.OpenStore(records.Disk{}, filepath.Join(dir, "claims"))
	locks, locksErr := claims.OpenLocks(filepath.Join(dir, "locks"))
	if err := errors.Join(storeErr, locksErr, os.MkdirAll(filepath.Dir(b.loadedFile()), 0o700)); err != nil {
		t.Fatal(err)
	}
	b.engine = claims.New(claims.Options{
		Identity: claims.Identity{Driver: "gpu.cleave.dev", Pool: "node-1"}, BootID: "boot", Store: store, Locks: locks,
		Specs: cdi.Remover{Dir: dir, Driver: "gpu.cleave.dev"},
	})
	if err := os.MkdirAll(b.config.pluginDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	b.driver(true)
	b.noteLoaded()
	b.drain("")
	return b
}

// driver comes or goes.
func (b *releaseBed) driver(there bool) {
	b.t.Helper()
	for _, file := range []string{b.config.NVMLLibrary, b.loadedFile()} {
		err := os.Remove(file)
		if there {
			err = os.WriteFile(file, nil, 0o600)
		}
		if err != nil && !os.IsNotExist(err) {
			b.t.Fatal(err)
		}
	}
}

// drain sets the node's label.
func (b *releaseBed) drain(value string) {
	b.t.Helper()
	b.label(v1alpha1.ReleaseDriverLabel, value)
}

// label sets one label of the node, and no other.
func (b *releaseBed) label(key, value string) {
	b.t.Helper()
	node := nodeObject("")
	node.Labels = map[string]string{key: value}
	if err := b.around.object.Add(node); err != nil {
		b.t.Fatal(err)
	}
}

func TestTheDriverIsLetGoOfByTheLabelOrWhenItGoes(t *testing.T) {
	b := newReleaseBed(t)
	tests := []struct {
		step string
		do   func()
		want string // empty: it is kept
	}{
		{"nothing happened", func() {}, ""},
		{"another value", func() { b.drain("false") }, ""},
		{"the label", func() { b.drain("true") }, "gpu.cleave.dev/release-driver=true"},
		{"the label is gone", func() { b.drain("") }, ""},
		{"the deprecated label", func() { b.label(v1alpha1.DrainLabel, "true") }, "gpu.cleave.dev/drain"},
		{"the deprecated label is gone", func() { b.label(v1alpha1.DrainLabel, "") }, ""},
		{"the module is gone", func() { _ = os.Remove(b.loadedFile()) }, "went away"},
		{"the module is back", func() { b.driver(true) }, ""},
		{"the library is gone", func() { _ = os.Remove(b.config.NVMLLibrary) }, b.config.NVMLLibrary},
		{"both are gone", func() { b.driver(false) }, "went away"},
		{"both are back", func() { b.driver(true) }, ""},
		// Not every platform tells in procfs whether the driver is loaded.
		{"procfs has never told", func() { _ = os.Remove(b.loadedFile()); b.noteLoaded() }, ""},
	}
	for _, tt := range tests {
		tt.do()
		if got := text(b.mustLetGo()); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.step, got, tt.want)
		}
	}
}

// The session ends, nothing is handed out meanwhile, and the program starts anew when the driver can be used again.
func TestALetGoDriverIsUsedAgainByAProgramThatStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReleaseBed(t)
		hw := simulatedHardware(t)
		hw.offer(nil)
		b.engine.SetHardware(hw, nil)
		p, h, _ := runPublisher(t)
		b.drain("true")
		done := make(chan error, 1)
		go func() { done <- b.letGo(t.Context(), hw, p, b.mustLetGo()) }()
		synctest.Wait()
		for _, devices := range h.calls[len(h.calls)-1] {
			if strings.Count(devices, "!") != len(strings.Fields(devices)) {
				t.Errorf("devices %s: want all tainted", devices)
			}
		}
		if err := hw.VerifyGPU(t.Context(), &hw.Session.Node().GPUs[0]); err == nil {
			t.Error("the session still answers")
		}
		if err := b.ready.err(); err == nil || !strings.Contains(err.Error(), "release-driver=true") {
			t.Errorf("got readiness %v, want the reason", err)
		}
		b.driver(false) // it is being replaced
		b.drain("")
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("got %v while there is no driver", err)
		default:
		}
		if err := b.ready.err(); err == nil || !strings.Contains(err.Error(), "went away") {
			t.Errorf("got readiness %v, want the next reason", err)
		}
		b.driver(true)
		err := <-done // the clock of the bubble goes on to the next attempt
		if !errors.Is(err, ErrDriverBack) {
			t.Errorf("got %v, want that the driver is back", err)
		}
		hw.end(t.Context()) // as its owner does, too
	})
}

func TestAWaitForTheDriverEndsWithThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReleaseBed(t)
		b.drain("true")
		b.markDrained(t.Context(), true)
		for _, known := range []chan struct{}{b.around.object.known, b.around.others.known} {
			select {
			case <-known:
			default:
				close(known)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- b.waitForLabel(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := b.waitForDriver(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
