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
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// File is one entry of an image's root file system. The directories above it are
// made as needed.
type File struct {
	// Path is where it is in the image, such as "bin/busybox".
	Path string
	// Mode holds the permissions, and fs.ModeDir for a directory. Zero is 0644,
	// and 0755 for a directory.
	Mode fs.FileMode
	// Data is the content, unless Source or Link is set.
	Data []byte
	// Source is a file of this machine with the content.
	Source string
	// Link makes the entry a symbolic link with this target.
	Link string
}

// Image describes a container image of one layer, or one that was built.
type Image struct {
	// Ref is the name that pods use, with a host and a tag, such as
	// "cleave.local/driver:e2e".
	Ref string
	// Archive is an OCI archive with the image, whose other fields are in it.
	Archive    string
	Files      []File
	Entrypoint []string
	Cmd        []string
	Env        []string
}

// FilesOf turns a file system into the files of an image.
func FilesOf(fsys fs.FS) ([]File, error) {
	var files []File
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		file := File{Path: name, Mode: info.Mode() & (fs.ModePerm | fs.ModeDir)}
		switch {
		case entry.IsDir():
		case info.Mode()&fs.ModeSymlink != 0:
			file.Link, err = fs.ReadLink(fsys, name)
		case info.Mode().IsRegular():
			file.Data, err = fs.ReadFile(fsys, name)
		default:
			return fmt.Errorf("%s is neither a file nor a directory nor a link", name)
		}
		files = append(files, file)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the files of an image: %w", err)
	}
	return files, nil
}

// writeArchive writes an image as an OCI layout in a tar file. The same image
// gives the same bytes.
func writeArchive(w io.Writer, image Image) error {
	if image.Ref == "" || !strings.Contains(image.Ref, "/") || !strings.Contains(path.Base(image.Ref), ":") {
		return fmt.Errorf("write image %q: its name needs a host and a tag, as in cleave.local/name:tag", image.Ref)
	}
	var layer bytes.Buffer
	if err := writeLayer(&layer, image.Files); err != nil {
		return fmt.Errorf("write image %s: %w", image.Ref, err)
	}
	blobs := blobSet{}
	layerBlob := blobs.add("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	config, err := blobs.addJSON("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Cmd, "Env": image.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layerBlob.Digest}},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", image.Ref, err)
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest, err := blobs.addJSON(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{layerBlob},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", image.Ref, err)
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": image.Ref}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{manifest},
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", image.Ref, err)
	}
	files := []File{{Path: "oci-layout", Data: []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {Path: "index.json", Data: index}}
	for _, digest := range blobs.order {
		files = append(files, File{Path: "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:"), Data: blobs.data[digest]})
	}
	if err := writeLayer(w, files); err != nil {
		return fmt.Errorf("write image %s: %w", image.Ref, err)
	}
	return nil
}

// descriptor points to a blob, as the OCI image specification has it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// blobSet holds the blobs of an image in the order in which they were added.
type blobSet struct {
	order []string
	data  map[string][]byte
}

func (b *blobSet) add(mediaType string, data []byte) descriptor {
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if b.data == nil {
		b.data = map[string][]byte{}
	}
	if _, ok := b.data[digest]; !ok {
		b.order = append(b.order, digest)
		b.data[digest] = data
	}
	return descriptor{MediaType: mediaType, Digest: digest, Size: len(data)}
}

func (b *blobSet) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return b.add(mediaType, data), nil
}

// writeLayer writes files as a tar stream, owned by root, sorted by path, each
// directory before what is in it.
func writeLayer(w io.Writer, files []File) error {
	archive := tar.NewWriter(w)
	seen := map[string]bool{".": true}
	sorted := slices.Clone(files)
	slices.SortStableFunc(sorted, func(a, b File) int { return strings.Compare(clean(a.Path), clean(b.Path)) })
	for _, file := range sorted {
		file.Path = clean(file.Path)
		if file.Path == "." || seen[file.Path] {
			continue
		}
		if err := writeParents(archive, path.Dir(file.Path), seen); err != nil {
			return err
		}
		seen[file.Path] = true
		if err := writeEntry(archive, file); err != nil {
			return fmt.Errorf("add %s: %w", file.Path, err)
		}
	}
	return archive.Close()
}

// clean makes a path relative and keeps it inside the image.
func clean(p string) string { return strings.TrimPrefix(path.Clean("/"+p), "/") }

func writeParents(archive *tar.Writer, dir string, seen map[string]bool) error {
	if seen[dir] {
		return nil
	}
	if err := writeParents(archive, path.Dir(dir), seen); err != nil {
		return err
	}
	seen[dir] = true
	return writeEntry(archive, File{Path: dir, Mode: fs.ModeDir})
}

func writeEntry(archive *tar.Writer, file File) error {
	header := &tar.Header{Name: file.Path, Mode: int64(permissions(file)), Format: tar.FormatPAX}
	switch {
	case file.Mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, file.Path+"/"
		return archive.WriteHeader(header)
	case file.Link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, file.Link
		return archive.WriteHeader(header)
	case file.Source != "":
		return copyEntry(archive, header, file.Source)
	}
	header.Typeflag, header.Size = tar.TypeReg, int64(len(file.Data))
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(file.Data)
	return err
}

func permissions(file File) fs.FileMode {
	if perm := file.Mode.Perm(); perm != 0 {
		if file.Mode&fs.ModeSticky != 0 {
			return perm | 0o1000
		}
		return perm
	}
	if file.Mode.IsDir() {
		return 0o755
	}
	return 0o644
}

func copyEntry(archive *tar.Writer, header *tar.Header, source string) (err error) {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}
