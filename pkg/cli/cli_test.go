// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// envFlags is a flag set with one flag of each kind, and what was set.
func envFlags() (*pflag.FlagSet, *string, *int) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	name := flags.String("node-name", "default", "")
	burst := flags.Int("kube-api-burst", 200, "")
	flags.Bool("help", false, "")
	return flags, name, burst
}

func TestFlagsFromEnvironment_Precedence(t *testing.T) {
	tests := map[string]struct {
		args  []string
		env   map[string]string
		name  string
		burst int
	}{
		"neither":               {nil, nil, "default", 200},
		"environment":           {nil, map[string]string{"NODE_NAME": "env", "KUBE_API_BURST": "7"}, "env", 7},
		"command line":          {[]string{"--node-name=line"}, nil, "line", 200},
		"both":                  {[]string{"--node-name=line"}, map[string]string{"NODE_NAME": "env"}, "line", 200},
		"default said aloud":    {[]string{"--node-name=default"}, map[string]string{"NODE_NAME": "env"}, "default", 200},
		"empty is unset":        {nil, map[string]string{"NODE_NAME": ""}, "default", 200},
		"help is no such thing": {nil, map[string]string{"HELP": "yes please"}, "default", 200},
		"lower case is another": {nil, map[string]string{"node_name": "env", "NODE-NAME": "env"}, "default", 200},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			flags, nodeName, burst := envFlags()
			if err := flags.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := FlagsFromEnvironment(flags, func(k string) string { return tt.env[k] }); err != nil {
				t.Fatalf("FlagsFromEnvironment: %v", err)
			}
			if diff := cmp.Diff([]string{tt.name, fmt.Sprint(tt.burst)}, []string{*nodeName, fmt.Sprint(*burst)}); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicyFlags_Active(t *testing.T) {
	active := filepath.Join(t.TempDir(), policy.ActiveFile)
	name, p, err := (&PolicyFlags{Active: active}).load()
	if err != nil || name != policy.BuiltIn || len(p.Rules) != 0 {
		t.Errorf("none kept: got %q, %v, %v", name, p, err)
	}
	kept := &v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{{Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}}}}
	if err := policy.NewActiveStore(store.Disk{}, active).Keep(&policy.Active{Name: "inference", Policy: kept}); err != nil {
		t.Fatal(err)
	}
	name, p, err = (&PolicyFlags{Active: active}).load()
	if err != nil || name != "inference" {
		t.Fatalf("one kept: got %q, %v", name, err)
	}
	if diff := cmp.Diff(kept.Rules, p.Rules); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if _, _, err := (&PolicyFlags{Active: active, Name: "training"}).load(); err == nil || !strings.Contains(err.Error(), "training") {
		t.Errorf("a name that no policy has: got %v", err)
	}
	if err := os.WriteFile(active, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if name, _, err := (&PolicyFlags{Active: active}).load(); err == nil {
		t.Errorf("a broken file: got policy %q", name)
	}
}

func TestPolicyFlags_Format(t *testing.T) {
	for _, name := range []string{"policy", "device-plugin", "mig-parted"} {
		format := new(formatValue)
		if err := format.Set(name); err != nil || format.String() != name {
			t.Errorf("%s: got %s, %v", name, format, err)
		}
	}
}
