// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// imageWith makes an OCI archive with a manifest and one layer.
func imageWith(t *testing.T, file, content string) string {
	t.Helper()
	layer, err := pack([]entry{{"etc/passwd", 0o644, []byte("root")}, {file, 0o755, []byte(content)}}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	image, err := pack([]entry{{"index.json", 0o644, []byte("{}")}, {"blobs/sha256/1", 0o644, []byte(`{"layers": []}`)},
		{"blobs/sha256/2", 0o644, layer}}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return string(image)
}

// Both builds of each program for each architecture have to be the same, to the last bit.
func TestCompare(t *testing.T) {
	for _, test := range []struct{ name, file, content, err string }{
		{name: "same", file: "usr/bin/cleave-scheduler", content: "program"},
		{name: "a byte differs", file: "usr/bin/cleave-scheduler", content: "Program", err: "compare cleave-scheduler for arm64: two builds of it differ"},
		{name: "a byte is missing", file: "usr/bin/cleave-scheduler", content: "progra", err: "compare cleave-scheduler for arm64: two builds of it differ"},
		{name: "another file", file: "usr/bin/scheduler", content: "program", err: "the image has no usr/bin/cleave-scheduler"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &release{repository: t.TempDir()}
			for _, dir := range []string{r.built("amd64", ""), r.built("arm64", ""), filepath.Dir(r.image("", ""))} {
				if err := os.MkdirAll(dir, 0o750); err != nil {
					t.Fatal(err)
				}
			}
			for _, arch := range architectures {
				for _, p := range programsOf {
					write(t, r.built(arch, p.name), "program")
					write(t, r.image(arch, p.image), imageWith(t, "usr/bin/"+p.name, "program"))
				}
			}
			last := programsOf[len(programsOf)-1].image
			write(t, r.image("arm64", last), imageWith(t, test.file, test.content))
			err := r.compare(t.Context())
			if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want an error with %q", err, test.err)
			}
		})
	}
}
