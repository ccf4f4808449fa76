// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
	"github.com/cleave-dra/cleave/pkg/driver/names"
)

func TestUninstalled(t *testing.T) {
	const there = `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"cleave-plugin"}}`
	const leaving = `{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{"name":"cleave-plugin","deletionTimestamp":"2026-01-01T00:00:00Z"}}`
	const failure = `{"kind":"DaemonSet","apiVersion":"apps/v1"}` // the status code says it
	for name, tt := range map[string]struct {
		status          int
		body            string
		seenGone        bool
		seenLater       bool
		want, wantError bool
	}{
		"there":                            {status: http.StatusOK, body: there},
		"there again":                      {status: http.StatusOK, body: there, seenGone: true},
		"being deleted":                    {status: http.StatusOK, body: leaving, want: true},
		"gone":                             {status: http.StatusNotFound, body: failure, want: true},
		"may not ask":                      {status: http.StatusForbidden, body: failure, wantError: true},
		"may not ask, seen to go later":    {status: http.StatusForbidden, body: failure, seenLater: true, want: true},
		"API server fails, not waited for": {status: http.StatusInternalServerError, body: failure, seenLater: true, wantError: true},
		"unknown to the API server":        {status: http.StatusUnauthorized, body: failure, wantError: true},
		"API server fails":                 {status: http.StatusInternalServerError, body: failure, wantError: true},
		"API server fails, seen to go":     {status: http.StatusInternalServerError, body: failure, seenGone: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/apis/apps/v1/namespaces/cleave-system/daemonsets/cleave-plugin" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(tt.body))
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			gone, err := uninstalled(t.Context(), client, "cleave-system/cleave-plugin", seenInstallation{tt.seenGone, tt.seenLater})
			if gone != tt.want || (err != nil) != tt.wantError {
				t.Errorf("got %t, %v, want %t, an error: %t", gone, err, tt.want, tt.wantError)
			}
		})
	}
}

// seenInstallation is whether the watch has seen the DaemonSet go, and whether it will.
type seenInstallation struct{ gone, later bool }

func (s seenInstallation) DaemonSetGone() bool                     { return s.gone }
func (s seenInstallation) AwaitDaemonSetGone(context.Context) bool { return s.later }

// leavingConfig is a plugin with all the files that one has.
func leavingConfig(t *testing.T) *Config {
	t.Helper()
	dir := t.TempDir()
	c := validConfig()
	c.PluginsDir, c.RegistryDir, c.CDIDir = filepath.Join(dir, "plugins"), filepath.Join(dir, "registry"), filepath.Join(dir, "cdi")
	for _, file := range []string{
		"plugins/gpu.cleave.dev/cleave.lock", "plugins/_cleave/cleave.lock", "plugins/_cleave/locks/gpu-0000-1b-00-0.lock",
		"plugins/_cleave/claims/.1234.json.4711", "plugins/_cleave/driver-session.json", "plugins/gpu.cleave.dev/.policy.json.4711",
		"plugins/_cleave/nvidia-cdi-hook", "plugins/_cleave/reset.json", "plugins/gpu.cleave.dev/dra-1234.sock",
		"registry/" + kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, c.DriverName, "1234"),
		"cdi/gpu.cleave.dev-gpu.json",
		// Others'.
		"plugins/other/dra.sock", "registry/gpu.cleave.dev-5678-reg.sock", "registry/other-reg.sock", "cdi/nvidia.com-gpu.json",
	} {
		write(t, filepath.Join(dir, file), "")
	}
	return &c
}

// filesOf lists what is left of a plugin's files, directories too.
func filesOf(t *testing.T, c *Config) []string {
	t.Helper()
	root := filepath.Dir(c.PluginsDir)
	var found []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if name, _ := filepath.Rel(root, path); !d.IsDir() || strings.Contains(name, "cleave") {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Records that were set aside as corrupt stay, as they may be of interest, and nothing else of the plugin.
func TestRemoveFiles_NoClaims(t *testing.T) {
	const claims = "plugins/_cleave/claims"
	for name, corrupt := range map[string][]string{
		"none corrupt": nil, "one corrupt": {"plugins/_cleave", claims, claims + "/corrupt", claims + "/corrupt/1234.json"},
	} {
		t.Run(name, func(t *testing.T) {
			c := leavingConfig(t)
			if corrupt != nil {
				write(t, filepath.Join(filepath.Dir(c.PluginsDir), corrupt[3]), "")
			}
			if left, err := removeFiles(t.Context(), c, true); left != 0 || err != nil {
				t.Fatalf("got %d, %v", left, err)
			}
			want := []string{"cdi/nvidia.com-gpu.json", "plugins/other/dra.sock", "registry/gpu.cleave.dev-5678-reg.sock", "registry/other-reg.sock"}
			if diff := cmp.Diff(slices.Insert(want, 1, corrupt...), filesOf(t, c)); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveFiles_Claims(t *testing.T) {
	c := leavingConfig(t)
	write(t, filepath.Join(c.nodeDir(), "claims/1234.json"), "{}")
	for _, dir := range []string{"claims/copies", "claims/corrupt"} {
		if err := os.Mkdir(filepath.Join(c.nodeDir(), dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	before := filesOf(t, c)
	if left, err := removeFiles(t.Context(), c, true); left != 1 || err != nil {
		t.Errorf("got %d, %v, want 1 claim", left, err)
	}
	if diff := cmp.Diff(before, filesOf(t, c)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
}

// A plugin of another driver name runs: it needs what both share, and its claims keep nothing of this name.
func TestRemoveFiles_AnotherNameRuns(t *testing.T) {
	c := leavingConfig(t)
	kept, err := records.OpenStore(store.Disk{}, filepath.Join(c.nodeDir(), records.ClaimsDir))
	if err == nil {
		err = kept.Write(&records.Record{Format: records.Format, BootID: "boot", Driver: "gpu.nvidia.com", Claim: records.Claim{Namespace: "ns", Name: "x", UID: "x"},
			Devices: []records.Device{{Request: "r", Pool: "node-1", Device: renamedGPU, GPU: renamedGPU, UUID: "GPU-1"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if left, err := removeFiles(t.Context(), c, true); left != 1 || err != nil {
		t.Errorf("the last plugin: got %d, %v, want 1 claim", left, err)
	}
	if left, err := removeFiles(t.Context(), c, false); left != 0 || err != nil {
		t.Errorf("got %d, %v", left, err)
	}
	for path, want := range map[string]bool{c.pluginDir(): false, filepath.Join(c.nodeDir(), records.ClaimsDir, "x.json"): true, filepath.Join(c.nodeDir(), locksDir): true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", path, err, want)
		}
	}
}

// Records of layouts, whose partitions are there, and of changes of MIG modes that were interrupted stay for the next plugin.
func TestRemoveFiles_RecordsOfGPUs(t *testing.T) {
	for _, dir := range []string{records.LayoutsDir, records.ModesDir} {
		t.Run(dir, func(t *testing.T) {
			c := leavingConfig(t)
			records := filepath.Join(c.nodeDir(), dir)
			for _, file := range []string{"gpu-0000-1b-00-0.json", ".gpu-0000-1b-00-0.json.4711"} {
				write(t, filepath.Join(records, file), "")
			}
			if err := os.Mkdir(filepath.Join(records, "corrupt"), 0o700); err != nil {
				t.Fatal(err)
			}
			if left, err := removeFiles(t.Context(), c, true); left != 0 || err != nil {
				t.Fatalf("got %d, %v", left, err)
			}
			entries, err := os.ReadDir(records)
			if err != nil || len(entries) != 1 || entries[0].Name() != "gpu-0000-1b-00-0.json" {
				t.Errorf("left of the records: %v, %v, want the record", entries, err)
			}
			if err := os.Remove(filepath.Join(records, "gpu-0000-1b-00-0.json")); err != nil {
				t.Fatal(err)
			}
			if _, err := removeFiles(t.Context(), c, true); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(c.pluginDir()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the plugin's directory is left: %v", err)
			}
		})
	}
}

// TestEnter: a plugin that starts removes the sockets of one that died with its node, unless another plugin runs, and those that somebody
// listens on stay.
func TestEnter(t *testing.T) {
	for name, others := range map[string]int{"alone": 0, "beside another": 1} {
		t.Run(name, func(t *testing.T) {
			c := leavingConfig(t)
			dead := []string{
				filepath.Join(c.pluginDir(), "dra-1234.sock"),
				filepath.Join(c.RegistryDir, kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, c.DriverName, "1234")),
			}
			alive, err := net.Listen("unix", filepath.Join(c.pluginDir(), "dra-5678.sock"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = alive.Close() }()
			for range others {
				defer acquired(t, c.pluginDir()).release()
			}
			before := filesOf(t, c)
			entered, err := enter(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer entered.release()
			want := slices.DeleteFunc(before, func(file string) bool {
				return others == 0 && slices.Contains(dead, filepath.Join(filepath.Dir(c.PluginsDir), file))
			})
			if diff := cmp.Diff(want, filesOf(t, c)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			defer acquired(t, c.pluginDir()).release()
			if entered.alone() {
				t.Error("the plugin does not count as running")
			}
		})
	}
}

// acquired is the lease of a plugin that starts.
func acquired(t *testing.T, dir string) *lease {
	t.Helper()
	p, err := acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLastPlugin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gpu.cleave.dev")
	old, next := acquired(t, dir), acquired(t, dir)
	if old.alone() {
		t.Error("the old plugin thinks it is alone alongside the next")
	}
	old.release()
	if !next.alone() {
		t.Error("the next plugin is not alone after the old one left")
	}
	// A plugin that starts now waits until the files are gone, and makes them anew.
	entered := make(chan *lease, 1)
	go func() {
		p, err := acquire(dir)
		if err != nil {
			t.Error(err)
		}
		entered <- p
	}()
	select {
	case <-entered:
		t.Fatal("a plugin started while another took its files away")
	case <-time.After(50 * time.Millisecond):
	}
	if err := os.Remove(filepath.Join(dir, names.Running)); err != nil {
		t.Fatal(err)
	}
	next.release()
	last := <-entered
	defer last.release()
	if _, err := os.Stat(filepath.Join(dir, names.Running)); err != nil {
		t.Errorf("the plugin that started has no mark: %v", err)
	}
	if !last.alone() {
		t.Error("the last plugin is not alone")
	}
}

// A plugin that is uninstalled and installed again in one boot knows the partitions of its layouts for its own. Layouts without
// partitions leave nothing.
func TestRemoveFiles_Layouts(t *testing.T) {
	for name, places := range map[string][]gpu.Place{"partitions": {{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			s := newService(*leavingConfig(t))
			open := func() string {
				if err := os.MkdirAll(s.config.nodeDir(), 0o700); err != nil {
					t.Fatal(err)
				}
				sessions, err := driversession.Open(store.Disk{}, filepath.Join(s.config.nodeDir(), sessionFile), "boot",
					os.DirFS(t.TempDir()), os.DirFS(t.TempDir()))
				if err == nil {
					err = sessions.Begin([]string{renamedGPU})
				}
				if err != nil {
					t.Fatal(err)
				}
				return sessions.Of(renamedGPU)
			}
			before := open()
			layouts, err := records.OpenLayouts(store.Disk{}, filepath.Join(s.config.nodeDir(), records.LayoutsDir))
			if err == nil {
				err = layouts.Write(&records.Layout{Format: records.LayoutFormat, BootID: "boot", Session: before, GPU: renamedGPU, UUID: "GPU-1",
					Places: places, Offered: []gpu.Place{{ProfileID: 19}}})
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := removeFiles(t.Context(), &s.config, true); err != nil {
				t.Fatal(err)
			}
			if kept := keepsLayouts(&s.config); kept != (places != nil) {
				t.Errorf("the record of the layout is kept: %t", kept)
			}
			if after := open(); (after == before) != (places != nil) {
				t.Errorf("the session was %s and is %s", before, after)
			}
		})
	}
}
