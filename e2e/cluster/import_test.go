// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNameIn(t *testing.T) {
	index := func(annotations string) File {
		return File{Path: "index.json", Data: []byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:0","annotations":{` + annotations + `}}]}`)}
	}
	for name, test := range map[string]struct {
		files     []File
		want, err string
	}{
		"named":     {files: []File{{Path: "blobs/x"}, index(`"org.opencontainers.image.ref.name":"example.com/a:1"`)}, want: "example.com/a:1"},
		"unnamed":   {files: []File{index("")}, err: "want one with a name"},
		"no index":  {files: []File{{Path: "blobs/x"}}, err: "find index.json"},
		"two of it": {files: []File{{Path: "index.json", Data: []byte(`{"manifests":[{},{}]}`)}}, err: "has 2 images"},
	} {
		t.Run(name, func(t *testing.T) {
			var archive bytes.Buffer
			must(t, writeLayer(&archive, test.files))
			path := filepath.Join(t.TempDir(), "image.tar")
			must(t, os.WriteFile(path, archive.Bytes(), 0o600))
			got, err := nameIn(path)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %q and the error %v, want %q and %q", got, err, test.want, test.err)
			}
		})
	}
}
