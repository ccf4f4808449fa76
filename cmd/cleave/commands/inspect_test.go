// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// inspected is what `cleave inspect -o json` prints.
func inspected(t *testing.T, args ...string) *inspect.View {
	t.Helper()
	got := cleave(t, append([]string{"inspect", "-o", "json"}, args...)...)
	if got.code != cli.ExitOK || got.stderr != "" {
		t.Fatalf("got code %d, stderr %q", got.code, got.stderr)
	}
	v := &inspect.View{}
	if err := json.Unmarshal([]byte(got.stdout), v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestInspect_EveryModel(t *testing.T) {
	for _, model := range simulated.NodeModels() {
		v := inspected(t, "--node-model", model)
		if v.Source != inspect.Model || v.Node != model || v.Driver != "gpu.cleave.dev" || len(v.GPUs) == 0 {
			t.Errorf("%s: got %d GPUs of %s %s and driver %s", model, len(v.GPUs), v.Source, v.Node, v.Driver)
		}
		table := cleave(t, "inspect", "--node-model", model)
		for i := range v.GPUs {
			if !strings.Contains(table.stdout, v.GPUs[i].Device) {
				t.Errorf("%s: %s is not in the table", model, v.GPUs[i].Device)
			}
		}
		if strings.Contains(table.stdout, v.GPUs[0].UUID) ||
			!strings.Contains(cleave(t, "inspect", "--node-model", model, "-o", "wide").stdout, v.GPUs[0].UUID) {
			t.Errorf("%s: UUIDs are to be in the wide table only", model)
		}
	}
}

func TestInspect_Policy(t *testing.T) {
	path := writeFile(t, "policy.yaml", "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n- {match: {indexes: [0]}, exclude: true}\n"+
		"- {tiers: [exclusive]}\n")
	got := cleave(t, "inspect", "--node-model", "l40s", "--policy", path)
	for _, want := range []string{"not offered", "GPU0: nothing", "GPU1 to GPU3: whole\n", "the policy excludes it"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is not in\n%s", want, got.stdout)
		}
	}
}

func TestInspect_Locale(t *testing.T) {
	tests := []struct {
		env  map[string]string
		args []string
		want string
	}{
		{map[string]string{"LANG": "en_US.UTF-8"}, nil, "│"},
		{map[string]string{"LANG": "C.utf8"}, nil, "│"},
		{map[string]string{"LANG": "en_US.UTF-8"}, []string{"--ascii"}, "|"},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, nil, "|"},
		{map[string]string{"LANG": "C", "LC_CTYPE": "de_DE.UTF-8"}, nil, "│"},
		{map[string]string{"LANG": "de_DE.ISO-8859-1"}, nil, "|"},
		{nil, nil, "|"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.env, tt.args), func(t *testing.T) {
			for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
				t.Setenv(name, tt.env[name])
			}
			got := cleave(t, append([]string{"inspect", "--node-model", "hgx-h100"}, tt.args...)...).stdout
			if !strings.Contains(got, "GPU0 "+tt.want) {
				t.Errorf("no %q in\n%s", tt.want, got)
			}
		})
	}
}

func TestInspect_Width(t *testing.T) {
	longest := func(columns string) int {
		t.Setenv("COLUMNS", columns)
		most := 0
		for _, line := range strings.Split(cleave(t, "inspect", "--node-model", "rtx-pro-6000", "--ascii").stdout, "\n") {
			if strings.Contains(line, "|") {
				most = max(most, len(line))
			}
		}
		return most
	}
	wide := longest("200")
	for _, columns := range []string{"", "what", "-1"} {
		if got := longest(columns); got != wide {
			t.Errorf("COLUMNS=%q: maps of %d characters, want %d as with room", columns, got, wide)
		}
	}
	if got := longest("40"); got > 40 || got < 30 {
		t.Errorf("COLUMNS=40: maps of %d characters", got)
	}
}
