// Package hook carries the nvidia-cdi-hook program inside the binary and installs it where container runtimes can run
// it. Specs name hooks of the toolkit release they were made with; carrying the program rules out another release's.
package hook

import (
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Name is the name by which specs and runtimes know the program.
const Name = "nvidia-cdi-hook"

// maxSize bounds the unpacked program in bytes; it has some 6 MB.
const maxSize = 64 << 20

// dist holds the program, packed, once the Makefile has built it. Packed, it costs the plugin less memory to read.
//
//go:embed all:dist
var dist embed.FS

// Install puts the program into a folder of the host and returns its path. It replaces an earlier one at once: a hook
// that runs meanwhile is not disturbed.
func Install(dir string) (string, error) {
	packed, err := dist.Open("dist/" + Name + ".gz")
	if err != nil {
		return "", fmt.Errorf("install the CDI hook: this binary was built without it; build with make build: %w", err)
	}
	path, err := installFrom(packed, dir)
	return path, errors.Join(err, packed.Close())
}

// installFrom unpacks the program into a folder.
func installFrom(packed io.Reader, dir string) (path string, err error) {
	path = filepath.Join(filepath.Clean(dir), Name)
	defer func() {
		if err != nil {
			path, err = "", fmt.Errorf("install the CDI hook as %s: %w", path, err)
		}
	}()
	program, err := gzip.NewReader(packed)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", err
	}
	to, err := os.CreateTemp(filepath.Dir(path), "."+Name+".*")
	if err != nil {
		return "", err
	}
	if err := write(to, program); err != nil {
		return "", errors.Join(err, os.Remove(to.Name()))
	}
	return path, os.Rename(to.Name(), path)
}

// write fills and closes a file and makes it a program.
func write(to *os.File, program io.Reader) error {
	n, err := io.Copy(to, io.LimitReader(program, maxSize+1))
	if err == nil && n > maxSize {
		err = fmt.Errorf("the program is larger than %d bytes", maxSize)
	}
	if err == nil {
		err = to.Chmod(0o755)
	}
	return errors.Join(err, to.Close())
}
