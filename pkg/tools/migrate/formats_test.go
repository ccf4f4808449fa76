// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/migrate"
)

// directory writes files and returns their directory.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		write(t, filepath.Join(dir, name), data)
	}
	return dir
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tiersOf are the names of a set's policies with the tiers of their first rule.
func tiersOf(t *testing.T, s *policy.Set) map[string][]v1alpha1.Tier {
	t.Helper()
	tiers := map[string][]v1alpha1.Tier{}
	for _, name := range s.Names() {
		got, p, err := s.Select(name)
		if err != nil || got != name || p.Metadata.Name != name {
			t.Errorf("select %s: got %s, %v, %v", name, got, p, err)
			continue
		}
		tiers[name] = p.Rules[0].Tiers
	}
	return tiers
}

const (
	pluginFile = "version: v1\nflags: {gdsEnabled: true}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
	partedFile = "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}], b: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}], c: [{devices: all, mig-enabled: true, mig-devices: {1g.24gb+new: 4}}]}"
)

func TestFormats_Load(t *testing.T) {
	slice, whole, mig := []v1alpha1.Tier{v1alpha1.TierTimeSlice}, []v1alpha1.Tier{v1alpha1.TierExclusive}, []v1alpha1.Tier{v1alpha1.TierMIG}
	dir := directory(t, map[string]string{"plugin/x": pluginFile, "plugin/y.yaml": "version: v1", "parted/config.yaml": partedFile, "bad/x": "version: v2", "bad/y": "version: v1"})
	for path, tt := range map[string]struct {
		format policy.Format
		want   map[string][]v1alpha1.Tier
		notes  int
	}{
		"plugin/x":           {migrate.FormatDevicePlugin(), map[string][]v1alpha1.Tier{"default": slice}, 4},
		"plugin":             {migrate.FormatDevicePlugin(), map[string][]v1alpha1.Tier{"x": slice, "y": whole}, 5},
		"parted/config.yaml": {migrate.FormatMIGParted(), map[string][]v1alpha1.Tier{"a": whole, "b": mig}, 2},
	} {
		s, err := policy.Load(filepath.Join(dir, path), tt.format)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff(tt.want, tiersOf(t, s)); diff != "" {
			t.Errorf("%s: policies (-want +got):\n%s", path, diff)
		}
		if len(s.Notes()) != tt.notes || !strings.HasPrefix(s.Notes()[0], dir) {
			t.Errorf("%s: got notes %q, want %d that start with the file", path, s.Notes(), tt.notes)
		}
		if tt.format.Name == "mig-parted" {
			if _, _, err := s.Select("c"); err == nil || !strings.Contains(err.Error(), `config.yaml: policy "c": mig-configs[c][0].mig-devices[1g.24gb+new]: no equivalent`) {
				t.Errorf("what has no equivalent: got %v", err)
			}
		}
	}
	s, err := policy.Load(filepath.Join(dir, "bad"), migrate.FormatDevicePlugin())
	if s == nil || len(s.Names()) != 1 || err == nil || err.Error() != filepath.Join(dir, "bad/x")+`: version: Unsupported value: "v2": supported values: "v1"` {
		t.Errorf("a file that is wrong: got %v, %v", s, err)
	}
	if _, err := policy.Load(filepath.Join(dir, "plugin/x"), migrate.FormatMIGParted()); err == nil || !strings.Contains(err.Error(), `unknown field "flags"`) {
		t.Errorf("a file of the other format: got %v", err)
	}
}
