// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// environment is the complete environment of all programs.
var environment = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// launch is the command line of a driver program.
type launch struct {
	Path   string
	Args   []string // with the name
	Env    []string
	Chroot string // empty to stay in this process's root
}

// Entered reports whether a driver program runs chrooted in the driver root. The root must have a /dev and the program's
// loader. Container-Optimized OS's driver has neither: its programs run in the root of this process with the driver's
// libraries.
func (r Root) Entered(program string) bool {
	if filepath.Clean(r.Here) == "/" || r.Devices() != r {
		return false
	}
	loader, err := r.loader(program)
	return err != nil || loader == "" || r.has(loader)
}

func (r Root) loader(program string) (string, error) {
	f, err := r.open(program)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return loaderOf(f)
}

// launch returns the command line of a program below the root.
func (r Root) launch(program string, args []string) launch {
	here := filepath.Clean(r.Here)
	argv := append([]string{program}, args...)
	switch {
	case here == "/":
		return launch{Path: program, Args: argv, Env: environment}
	case r.Entered(program):
		return launch{Path: program, Args: argv, Env: environment, Chroot: here}
	}
	argv[0] = r.resolve(program)
	if loader, err := r.loader(program); err == nil && loader != "" && r.has(loader) {
		// The root's C library requires its own loader, ld.so(8).
		path := filepath.Join(here, loader)
		library := strings.Join(r.withNVML(r.join(libraryDirs)), ":")
		return launch{Path: path, Args: append([]string{path, "--library-path", library}, argv...), Env: environment}
	}
	l := launch{Path: argv[0], Args: argv, Env: environment}
	if path := r.LibraryPath(); path != "" {
		l.Env = append(append([]string{}, environment...), "LD_LIBRARY_PATH="+path)
	}
	return l
}

// FindSMI returns the first root with nvidia-smi, and its path there; if none has it, the usual path below the first root, which
// the error of running it then names.
func FindSMI(roots []Root) (root Root, path string) {
	for _, root := range roots {
		if path, found := root.Find("nvidia-smi"); found {
			return root, path
		}
	}
	return roots[0], "/usr/bin/nvidia-smi"
}

// maxOutput bounds the captured output of a program in bytes.
const maxOutput = 4096

// Run runs a driver program, given by its path below the root, and returns its output.
func (r Root) Run(ctx context.Context, program string, args ...string) ([]byte, error) {
	l := r.launch(program, args)
	cmd := exec.CommandContext(ctx, l.Path)
	cmd.Args, cmd.Env, cmd.Dir = l.Args, l.Env, "/"
	if l.Chroot != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: l.Chroot}
	}
	cmd.WaitDelay = time.Second
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err) // err alone says only that the program was killed
	}
	return out.kept.Bytes(), err
}

// limited keeps the first maxOutput bytes written to it. The buffer is not embedded, as its ReadFrom would bypass Write.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if left := maxOutput - l.kept.Len(); left > 0 {
		l.kept.Write(p[:min(left, len(p))])
	}
	return len(p), nil
}

// OneLine converts output to one line for an error or Event.
func OneLine(output []byte) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(string(output)), " "), "?")
}
