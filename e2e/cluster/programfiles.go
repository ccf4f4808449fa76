// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// ProgramFiles returns what an image needs to run a program of this machine:
// the program itself, at a path of the image, and the loader and the shared
// libraries that it is linked to, at the paths they have here.
func ProgramFiles(program, path string) ([]File, error) {
	files := []File{{Path: path, Mode: 0o755, Source: program}}
	loader, err := loaderOf(program)
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	if loader == "" {
		return files, nil // static
	}
	files = append(files, File{Path: loader, Mode: 0o755, Source: loader})
	output, err := exec.Command(loader, "--list", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: run %s --list: %w: %s", program, loader, err, lastLines(output, 3))
	}
	libraries, err := parseLibraries(string(output))
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w", program, err)
	}
	for _, library := range libraries {
		files = append(files, File{Path: library, Mode: 0o755, Source: library})
	}
	return files, nil
}

// loaderOf returns the ELF interpreter of a program, "" for a static one.
func loaderOf(program string) (loader string, err error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(data), "\x00"), err
		}
	}
	return "", nil
}

// parseLibraries reads what the loader lists: "name => path (address)" for a
// library, and without an arrow what is no file or the loader itself.
func parseLibraries(list string) ([]string, error) {
	var paths []string
	for line := range strings.Lines(list) {
		name, target, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if !ok {
			continue
		}
		path, _, _ := strings.Cut(target, " (")
		if !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("library %s is missing on this machine", name)
		}
		if path != name {
			paths = append(paths, path)
		}
	}
	return paths, nil
}
