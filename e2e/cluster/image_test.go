// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// readArchive returns the entries of a tar file: one line each, and contents.
func readArchive(t *testing.T, data []byte) (lines []string, contents map[string][]byte) {
	t.Helper()
	contents = map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines, contents
		}
		must(t, err)
		content, err := io.ReadAll(archive)
		must(t, err)
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%c %04o %s %s", header.Typeflag, header.Mode, header.Name, header.Linkname)))
		contents[header.Name] = content
	}
}

func TestLayer(t *testing.T) {
	var b bytes.Buffer
	err := writeLayer(&b, []File{
		{Path: "/usr/bin/tool", Mode: 0o755, Data: []byte("x")},
		{Path: "bin/sh", Link: "busybox"},
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Path: "../../etc/passwd", Data: []byte("root")}, // stays inside
	})
	must(t, err)
	lines, contents := readArchive(t, b.Bytes())
	want := []string{
		"5 0755 bin/", "2 0644 bin/sh busybox", "5 0755 etc/", "0 0644 etc/passwd", "5 1777 tmp/",
		"5 0755 usr/", "5 0755 usr/bin/", "0 0755 usr/bin/tool",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	if got := string(contents["etc/passwd"]); got != "root" {
		t.Errorf("etc/passwd holds %q", got)
	}
}

func TestArchive_Image(t *testing.T) {
	image := Image{
		Ref: "cleave.local/x:1", Cmd: []string{"/bin/x"}, Env: []string{"PATH=/bin"},
		Files: []File{{Path: "bin/x", Mode: 0o755, Data: []byte("x")}},
	}
	var first, second bytes.Buffer
	must(t, errors.Join(writeArchive(&first, image), writeArchive(&second, image)))
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same image gives different bytes")
	}
	_, files := readArchive(t, first.Bytes())
	blob := func(d descriptor, into any) {
		t.Helper()
		data := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		sum := sha256.Sum256(data)
		if "sha256:"+hex.EncodeToString(sum[:]) != d.Digest || len(data) != d.Size {
			t.Fatalf("blob %s is missing or does not match", d.Digest)
		}
		if into != nil {
			must(t, json.Unmarshal(data, into))
		}
	}
	var index struct{ Manifests []descriptor }
	must(t, json.Unmarshal(files["index.json"], &index))
	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != image.Ref {
		t.Errorf("the image is called %q", got)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(index.Manifests[0], &manifest)
	blob(manifest.Layers[0], nil)
	var config struct {
		Config struct{ Cmd, Env []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	blob(manifest.Config, &config)
	if diff := cmp.Diff([]string{manifest.Layers[0].Digest}, config.Rootfs.DiffIDs); diff != "" {
		t.Errorf("layers of the configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(image.Cmd, config.Config.Cmd); diff != "" {
		t.Errorf("command (-want +got):\n%s", diff)
	}
}

func TestArchive_IncompleteName(t *testing.T) {
	for _, ref := range []string{"", "busybox", "busybox:1", "cleave.local/busybox"} {
		if err := writeArchive(io.Discard, Image{Ref: ref}); err == nil {
			t.Errorf("name %q was accepted", ref)
		}
	}
}

func TestFilesOf(t *testing.T) {
	got, err := FilesOf(fstest.MapFS{
		"a/b":    {Data: []byte("b"), Mode: 0o600},
		"a/link": {Data: []byte("b"), Mode: fs.ModeSymlink},
	})
	must(t, err)
	want := []File{
		{Path: "a", Mode: fs.ModeDir | 0o555},
		{Path: "a/b", Mode: 0o600, Data: []byte("b")},
		{Path: "a/link", Link: "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestDecodeLog(t *testing.T) {
	log := "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o  2\n2026-01-01T00:00:00Z stdout F \nbroken\n"
	if diff := cmp.Diff("one\ntwo  2\n\n", decodeLog([]byte(log))); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
