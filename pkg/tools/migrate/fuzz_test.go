// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func FuzzDevicePlugin(f *testing.F) { fuzz(f, "device-plugin") }

func FuzzMIGParted(f *testing.F) { fuzz(f, "mig-parted") }

// fuzz checks that whatever is in a file gives either problems that can be printed or what the API server and the policy's
// own validation take.
func fuzz(f *testing.F, kind string) {
	files, err := filepath.Glob("testdata/" + kind + "*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, text := range []string{
		"", "version: v1", "\x7fELF", "a: &a [*a]", "version: v1\n--- \n...", "mig-configs: {\"a\\nb: c\": []}",
		"version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [a, \"b\\nc: d\"]}}\nresources: {gpus: [{pattern: \"a'*\\\"\\u2028b*\", name: x}]}\nsharing: {mps: {renameByDefault: true, resources: [{name: gpu, devices: 3, replicas: 100}]}}",
		"version: v1\nmig-configs: {\"a\\nkind: b\": [{devices: [0], mig-enabled: true, mig-devices: {1c.1g.5gb: 1}}], b: [{device-filter: [\"0x233010DE\\n:\"], devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3}}]}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := readers[kind](data, Options{})
		if err != nil {
			for _, p := range problems(err) {
				if p == "" || !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("problem %q cannot be printed", p)
				}
			}
			return
		}
		checkImport(t, i)
	})
}
