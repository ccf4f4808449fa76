// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// What keeps the plugin from starting and passes is waited for inside, with a reason in /readyz and one Event.
func TestOpen_WaitsForWhatMayPass(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil, mend func(dir string) error
		says        string
	}{
		"plugin directory cannot be made": {
			func(dir string) error { return os.WriteFile(filepath.Join(dir, "plugins"), nil, 0o600) },
			func(dir string) error { return os.Remove(filepath.Join(dir, "plugins")) },
			"not a directory",
		},
		"records cannot be listed": {
			func(dir string) error {
				plugin := filepath.Join(dir, "plugins", records.SharedDir)
				return errors.Join(os.MkdirAll(plugin, 0o700), os.WriteFile(filepath.Join(plugin, records.ClaimsDir), nil, 0o600))
			},
			func(dir string) error {
				return os.Remove(filepath.Join(dir, "plugins", records.SharedDir, records.ClaimsDir))
			},
			"not a directory",
		},
		"boot ID cannot be read": {
			func(dir string) error { return os.Remove(bootIDFile(dir)) },
			func(dir string) error { // whole or not at all: an empty file is another reason to wait
				next := bootIDFile(dir) + ".next"
				return errors.Join(os.WriteFile(next, []byte("boot\n"), 0o600), os.Rename(next, bootIDFile(dir)))
			},
			"read the boot ID",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, bootIDFile(dir), "boot\n")
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			recorder := record.NewFakeRecorder(100)
			s := newService(validConfig())
			s.client, s.events = fake.NewClientset(), cluster.NewEventsWith(recorder, "n")
			s.config.PluginsDir, s.config.Procfs, s.config.DriverRetry = filepath.Join(dir, "plugins"), filepath.Join(dir, "proc"), time.Millisecond
			opened := make(chan error, 1)
			go func() { opened <- s.persist(t.Context(), func() error { return s.open(t.Context()) }) }()
			select {
			case event := <-recorder.Events:
				if !strings.Contains(event, reasonStart) || !strings.Contains(event, tt.says) {
					t.Errorf("got Event %q, want reason %s and %q", event, reasonStart, tt.says)
				}
			case err := <-opened:
				t.Fatalf("got %v, want it to wait", err)
			}
			if err := s.ready.err(); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got readiness %v, want %q", err, tt.says)
			}
			if err := tt.mend(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if err := <-opened; err != nil {
				t.Fatal(err)
			}
			defer s.lease.release()
			if err := s.ready.err(); err == nil || strings.Contains(err.Error(), "cannot start") {
				t.Errorf("got readiness %v, want the next reason", err)
			}
			if len(recorder.Events) > 0 {
				t.Errorf("reported more than once: %s", <-recorder.Events)
			}
		})
	}
}

func bootIDFile(dir string) string { return filepath.Join(dir, "proc/sys/kernel/random/boot_id") }
