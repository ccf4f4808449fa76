package cdi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// HookName is the name by which specs and runtimes know the hook program.
const HookName = "nvidia-cdi-hook"

// InstallHook copies a program, which must behave as nvidia-cdi-hook when called by that name, into a folder of the
// host and returns its path. The copy replaces an earlier one at once: a hook that runs meanwhile is not disturbed.
func InstallHook(program, dir string) (path string, err error) {
	path = filepath.Join(filepath.Clean(dir), HookName)
	from, err := os.Open(filepath.Clean(program))
	if err != nil {
		return "", fmt.Errorf("install the CDI hook: %w", err)
	}
	defer from.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", fmt.Errorf("install the CDI hook: %w", err)
	}
	to, err := os.CreateTemp(filepath.Dir(path), "."+HookName+".*")
	if err != nil {
		return "", fmt.Errorf("install the CDI hook: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("install the CDI hook as %s: %w", path, errors.Join(err, os.Remove(to.Name())))
		}
	}()
	_, err = io.Copy(to, from)
	if err == nil {
		err = to.Chmod(0o755)
	}
	if closeErr := to.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return "", err
	}
	return path, os.Rename(to.Name(), path)
}
