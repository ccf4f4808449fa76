// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// pack makes a compressed archive of files. The same files and time give the same bytes.
func pack(entries []entry, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: at, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.data); err != nil {
			return nil, err
		}
	}
	err = errors.Join(archive.Close(), compressed.Close())
	return b.Bytes(), err
}

// unpack reads the files of an archive, compressed or not, in their order.
func unpack(data []byte) ([]entry, error) {
	var from io.Reader = bytes.NewReader(data)
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		compressed, err := gzip.NewReader(from)
		if err != nil {
			return nil, err
		}
		from = compressed
	}
	var entries []entry
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{strings.TrimPrefix(header.Name, "./"), header.Mode, content})
	}
}

// sums lists the checksums of files as sha256sum does.
func sums(dir string, names []string) ([]byte, error) {
	var b bytes.Buffer
	for _, name := range names {
		sum, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return b.Bytes(), nil
}

// sumOf is the SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// fileInImage is the content of a file in an OCI archive with one layer.
func fileInImage(image []byte, name string) ([]byte, error) {
	blobs, err := unpack(image)
	if err != nil {
		return nil, err
	}
	for _, blob := range blobs {
		if !strings.HasPrefix(blob.name, "blobs/") || bytes.HasPrefix(blob.data, []byte("{")) {
			continue
		}
		files, err := unpack(blob.data)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if f.name == name {
				return f.data, nil
			}
		}
	}
	return nil, fmt.Errorf("the image has no %s", name)
}
