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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/cdi"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// fakeDriver is a driver of a library and a file of procfs.
type fakeDriver struct {
	*driverFiles
	t *testing.T
}

func newFakeDriver(t *testing.T) fakeDriver {
	t.Helper()
	dir := t.TempDir()
	d := fakeDriver{&driverFiles{config: &Config{NVMLLibrary: filepath.Join(dir, "libnvidia-ml.so.1"), Procfs: dir, Sysfs: dir, DriverRoot: dir}}, t}
	d.set(true)
	d.used(dir)
	return d
}

// set installs or removes the driver.
func (d fakeDriver) set(there bool) {
	d.t.Helper()
	for _, file := range []string{d.config.NVMLLibrary, d.loadedFile()} {
		if there {
			write(d.t, file, "")
		} else if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			d.t.Fatal(err)
		}
	}
}

// loop makes a file a link to itself: it exists, and nothing more can be said of it, as of one on a disk with errors.
func (d fakeDriver) loop(path string) {
	d.t.Helper()
	if err := errors.Join(os.Remove(path), os.Symlink(path, path)); err != nil {
		d.t.Fatal(err)
	}
}

func TestDriverFiles_Missing(t *testing.T) {
	d := newFakeDriver(t)
	tests := []struct {
		step string
		do   func()
		want string // empty: nothing is missing
	}{
		{"nothing happened", func() {}, ""},
		{"module gone", func() { _ = os.Remove(d.loadedFile()) }, "went away"},
		{"module back", func() { d.set(true) }, ""},
		{"procfs cannot be read", func() { d.loop(d.loadedFile()) }, ""},
		{"procfs is back", func() { d.set(false); d.set(true) }, ""},
		{"library cannot be read", func() { _ = d.missing(); d.loop(d.config.NVMLLibrary) }, ""},
		{"library is back", func() { d.set(false); d.set(true) }, ""},
		{"library gone", func() { _ = os.Remove(d.config.NVMLLibrary) }, d.config.NVMLLibrary},
		{"both gone", func() { d.set(false) }, "went away"},
		{"both back", func() { d.set(true) }, ""},
		// Not every platform reports in procfs whether the driver is loaded.
		{"procfs never reported it", func() { _ = os.Remove(d.loadedFile()); d.used(d.root) }, ""},
	}
	for _, tt := range tests {
		tt.do()
		got := message(controller.ReleaseReason(cluster.Node{}, d.missing()))
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.step, got, tt.want)
		}
	}
}

// A plugin that waits for the driver, which may be away for days, says why, and what one that was killed has left paused does not wait.
func TestUseHardware_Waits(t *testing.T) {
	const label = "nvidia.com/gpu.deploy.dcgm"
	for says, released := range map[string]bool{v1alpha1.ReleaseDriverLabel + "=true": true, "libnvidia-ml.so.1": false} {
		t.Run(says, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, object := t.TempDir(), labeledNode(label, v1alpha1.ClientsPaused)
				if released {
					object.Labels[v1alpha1.ReleaseDriverLabel] = "true"
				}
				s := newService(Config{NodeName: "node-1", DriverName: "gpu.cleave.dev", PluginsDir: dir, DriverRetry: time.Hour,
					NVMLLibrary: filepath.Join(dir, "libnvidia-ml.so.1"), Procfs: dir, Sysfs: dir, DriverRoot: dir, PauseClients: []string{label}})
				s.client, s.events, s.engine = fake.NewClientset(object), cluster.NewEventsWith(record.NewFakeRecorder(100), "n"), newEngine(t)
				s.cluster = cluster.NewWatcher(s.client, "gpu.cleave.dev", "node-1", "", func() { s.loop.Mark(controller.Cluster) })
				s.clients = openClients(s)
				if err := os.MkdirAll(s.config.pluginDir(), 0o700); err != nil {
					t.Fatal(err)
				}
				s.marker.set(t.Context(), released)
				defer background(t.Context(), func(ctx context.Context) { s.cluster.Run(ctx, func(error) {}) })()
				defer background(t.Context(), s.clients.Run)()
				var why error
				stop := background(t.Context(), func(ctx context.Context) { why = s.useHardware(ctx) })
				<-time.After(time.Minute)
				s.ready.mu.Lock() // another obstacle comes first: the hook, without which tests are built
				if err := s.ready.errs[noDriver]; err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("it waits for the driver because of %v, want %q", err, says)
				}
				s.ready.mu.Unlock()
				node, err := s.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
				if err != nil || node.Labels[label] != v1alpha1.ClientsDeployed {
					t.Errorf("got %s=%s, %v", label, node.Labels[label], err)
				}
				if stop(); !errors.Is(why, context.Canceled) {
					t.Errorf("it ends with %v, want %v", why, context.Canceled)
				}
			})
		})
	}
}

func TestAwaitLabel(t *testing.T) {
	s := newService(Config{PluginsDir: t.TempDir(), DriverName: "gpu.cleave.dev"})
	if err := s.awaitLabel(t.Context()); err != nil {
		t.Errorf("driver was not released: got %v", err)
	}
}

// newEngine is a claims engine that has no hardware.
func newEngine(t *testing.T) *claims.Preparer {
	t.Helper()
	dir := t.TempDir()
	store, storeErr := records.OpenStore(store.Disk{}, filepath.Join(dir, "claims"))
	locks, locksErr := claims.OpenLocks(filepath.Join(dir, "locks"))
	if err := errors.Join(storeErr, locksErr); err != nil {
		t.Fatal(err)
	}
	return claims.New(claims.Options{
		Identity: claims.Identity{Driver: "gpu.cleave.dev", Pool: "node-1"}, BootID: "boot", Store: store, Locks: locks,
		Specs: func(driver string) claims.SpecRemover { return cdi.Remover{Dir: dir, Driver: driver} },
	})
}

func labeledNode(key, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{key: value}}}
}
