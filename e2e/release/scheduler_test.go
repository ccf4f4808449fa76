// SPDX-License-Identifier: Apache-2.0

package release

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestSchedulerConfig(t *testing.T) {
	data, err := SchedulerConfig("../..", "/k", 7, map[string]any{"GPUPacking": map[string]any{"candidates": 1}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		ClientConnection, LeaderElection any
		Profiles                         []struct {
			SchedulerName string
			Plugins       map[string]any
			PluginConfig  []any
		}
	}
	if err := yaml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Profiles) != 1 || got.Profiles[0].SchedulerName != "cleave-scheduler" || !strings.Contains(string(data), "GPUPacking") {
		t.Fatalf("profiles: %+v, want that of cleave-scheduler", got.Profiles)
	}
	for _, tt := range []struct{ want, got any }{
		{map[string]any{"kubeconfig": "/k", "qps": 7., "burst": 7.}, got.ClientConnection},
		{map[string]any{"leaderElect": false}, got.LeaderElection},
		{map[string]any{"name": "GPUPacking", "args": map[string]any{"candidates": 1.}}, got.Profiles[0].PluginConfig[0]},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}
