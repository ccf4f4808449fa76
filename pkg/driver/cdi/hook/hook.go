// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Names of the programs: NVIDIA's sets up driver files inside a container, Cleave's makes the driver limit a container's
// GPU memory.
const (
	NVIDIA      = "nvidia-cdi-hook"
	MemoryLimit = "cleave-memory-limit"
)

// programMode is that of an installed program: container runtimes run it as root.
const programMode fs.FileMode = 0o755

// maxSize bounds an unpacked program in bytes; the larger one takes some 11 MB.
const maxSize = 64 << 20

// Install installs a program in a directory of the host and returns its path. It replaces an earlier one atomically, so
// that running hooks are not affected, and writes nothing where the program is there already: the disk may be full.
func Install(dir, name string) (string, error) {
	packed, err := dist.ReadFile("dist/" + runtime.GOARCH + "/" + name + ".gz")
	if err != nil {
		return "", fmt.Errorf("install the CDI hook %s: this binary was built without it; build with make build: %w", name, err)
	}
	path := filepath.Join(filepath.Clean(dir), name)
	if err := install(packed, path); err != nil {
		return "", fmt.Errorf("install the CDI hook as %s: %w", path, err)
	}
	return path, nil
}

// install unpacks a program.
func install(packed []byte, path string) error {
	if same, err := isInstalled(packed, path); err == nil && same {
		return nil
	}
	program, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return store.Replace(path, func(to *os.File) error {
		n, err := io.Copy(to, io.LimitReader(program, maxSize+1))
		if err == nil && n > maxSize {
			err = fmt.Errorf("the program is larger than %d bytes", maxSize)
		}
		return errors.Join(err, to.Chmod(programMode))
	})
}

// isInstalled reports whether a file is just this program, and can be run.
func isInstalled(packed []byte, path string) (same bool, err error) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != programMode {
		return false, err
	}
	there, err := os.Open(filepath.Clean(path))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, there.Close()) }()
	program, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return false, err
	}
	return equal(program, there)
}

// equal reports whether two readers have the same bytes.
func equal(a, b io.Reader) (bool, error) {
	const chunk = 64 << 10
	of, other := make([]byte, chunk), make([]byte, chunk)
	for {
		n, err := io.ReadFull(a, of)
		m, otherErr := io.ReadFull(b, other)
		if !bytes.Equal(of[:n], other[:m]) {
			return false, nil
		}
		for _, err := range []error{err, otherErr} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if n < chunk {
			return true, nil
		}
	}
}
