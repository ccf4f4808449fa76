// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Names of the programs: NVIDIA's sets up driver files inside a container, Cleave's makes the driver limit a container's
// GPU memory.
const (
	NVIDIA      = "nvidia-cdi-hook"
	MemoryLimit = "cleave-memory-limit"
)

// maxSize bounds an unpacked program in bytes; the larger one takes some 11 MB.
const maxSize = 64 << 20

// Install installs a program in a directory of the host and returns its path. It replaces an earlier one atomically, so
// that running hooks are not affected.
func Install(dir, name string) (string, error) {
	packed, err := dist.Open("dist/" + runtime.GOARCH + "/" + name + ".gz")
	if err != nil {
		return "", fmt.Errorf("install the CDI hook %s: this binary was built without it; build with make build: %w", name, err)
	}
	path, err := installFrom(packed, dir, name)
	return path, errors.Join(err, packed.Close())
}

// installFrom unpacks a program into a directory.
func installFrom(packed io.Reader, dir, name string) (path string, err error) {
	path = filepath.Join(filepath.Clean(dir), name)
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
	to, err := os.CreateTemp(filepath.Dir(path), "."+name+".*")
	if err != nil {
		return "", err
	}
	if err := write(to, program); err != nil {
		return "", errors.Join(err, os.Remove(to.Name()))
	}
	return path, os.Rename(to.Name(), path)
}

// write fills and closes an executable file.
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
