// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDecode_Workload(t *testing.T) {
	got, err := Decode([]byte("duration: 24h\npods:\n- {name: small, deviceClassName: mig-1g.10gb.cleave.dev, running: 3, lifetime: 90m, placement: spread}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := &Workload{Duration: metav1.Duration{Duration: 24 * time.Hour}, Pods: []Pods{{
		Name: "small", DeviceClassName: "mig-1g.10gb.cleave.dev", Count: 1, Running: 3, Lifetime: metav1.Duration{Duration: 90 * time.Minute}, Placement: "spread",
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("workload (-want +got):\n%s", diff)
	}
}

func TestDecode_Invalid(t *testing.T) {
	const pod = "{name: a, deviceClassName: c, running: 1, lifetime: 1h}"
	for text, want := range map[string]string{
		"":                                    "duration: Invalid value",
		"duration: 1h":                        "pods: Required value",
		"duration: 1h\npods: []\nnodes: 3":    `unknown field "nodes"`,
		"duration: soon\npods: [" + pod + "]": "invalid duration",
		"duration: -1h\npods: [" + pod + "]":  "must be positive",
		"duration: 1h\nduration: 2h":          `"duration" already set`,
		"duration: 1h\npods: [" + pod + ", " + pod + "]":                                                    `pods[1].name: Duplicate value: "a"`,
		"duration: 1h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 1h, count: -1}]":          "pods[0].count",
		"duration: 1h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 1h, count: 65}]":          "must be 1 to 64",
		"duration: 1h\npods: [{name: a, deviceClassName: c, lifetime: 1h}]":                                 "pods[0].running",
		"duration: 1h\npods: [{name: a, running: 1, lifetime: 1h}]":                                         "pods[0].deviceClassName: Required value",
		"duration: 1h\npods: [{name: A b, deviceClassName: c, running: 1, lifetime: 1h}]":                   "pods[0].name",
		"duration: 1h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 0s}]":                     "pods[0].lifetime",
		"duration: 1h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 1h, placement: default}]": `supported values: "pack", "spread"`,
		"duration: 10000h\npods: [{name: a, deviceClassName: c, running: 100000, lifetime: 1h}]":            "pods would arrive",
		"duration: 1h\npods: [" + strings.TrimSuffix(strings.Repeat(pod+", ", maxKinds+1), ", ") + "]":      "must have at most 100 items",
		"duration: 1h\npods: [" + pod + "]\n---\nduration: 1h\npods: [" + pod + "]":                         "several documents, the second at line 3",
		strings.Repeat("#", maxBytes+1):                                                                     "may have 1048576",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %v, want %q", text, err, want)
		}
	}
}

// The examples fit nodes of the model that they are written for.
func TestDecode_Examples(t *testing.T) {
	files, err := filepath.Glob("../../../deployments/examples/workloads/*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("got %v, %v, want four examples", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		w, err := Decode(data)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if _, err := newPlan(t.Context(), poolOf(t, "hgx-h100", 50), w); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("duration: 1h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 1h}]"))
	f.Add([]byte("duration: 9999999h\npods: [{name: a, deviceClassName: c, running: 1, lifetime: 1ns}]"))
	f.Add([]byte("duration: 30m\npods: [{name: a, deviceClassName: c, running: 90, lifetime: 1000000h}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, err := Decode(data)
		if err != nil {
			return
		}
		if len(w.Pods) > 0 && w.Duration.Duration < time.Hour && w.Pods[0].Running < 100 {
			all := arrivals(w, 1)
			for i := range all {
				if all[i].until < all[i].at || i > 0 && all[i].at < all[i-1].at {
					t.Fatalf("arrival %d of %+v", i, w)
				}
			}
		}
	})
}
