// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// own is the module of Cleave; others of the repository begin with it.
const own = "github.com/cleave-dra/cleave"

// program is one that was built.
type program struct {
	path string
	// pkg is its package, goVersion the version of Go that built it, arch the architecture.
	pkg, goVersion, arch string
	// settings are those of its build that choose files, for go list.
	tags, cgo string
	modules   []linked
}

// linked is a module that a program links, but for Cleave's own.
type linked struct{ path, version string }

func (l linked) String() string { return l.path + "@" + l.version }

func readProgram(path string) (program, error) {
	data, err := readPacked(path)
	if err != nil {
		return program{}, fmt.Errorf("read the modules of %s: %w", path, err)
	}
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return program{}, fmt.Errorf("read the modules of %s: %w", path, err)
	}
	p := program{path: path, pkg: info.Path, goVersion: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOARCH":
			p.arch = s.Value
		case "-tags":
			p.tags = s.Value
		case "CGO_ENABLED":
			p.cgo = s.Value
		}
	}
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		if m.Path == own || strings.HasPrefix(m.Path, ".") {
			continue // the repository itself
		}
		p.modules = append(p.modules, linked{m.Path, m.Version})
	}
	if len(p.modules) == 0 {
		return p, fmt.Errorf("read the modules of %s: it says none; it was built in another way than by make", path)
	}
	return p, nil
}

// readPacked reads a file, unpacked if it is compressed as the hook programs are.
func readPacked(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(path, ".gz") {
		return data, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unpacked)
}

// directories are those of the packages that a program links, by their modules. The first is the module's own.
func (p program) directories(ctx context.Context, source string) (map[linked][]string, error) {
	command := exec.CommandContext(ctx, "go", "list", "-deps", "-tags", p.tags, "-json=Dir,Module", p.pkg)
	command.Dir = source
	if nested := strings.TrimPrefix(p.pkg, own+"/"); isNested(source, nested) {
		command.Dir = filepath.Join(source, nested)
	}
	command.Env = append(command.Environ(), "GOARCH="+p.arch, "CGO_ENABLED="+p.cgo)
	var complaints bytes.Buffer
	command.Stderr = &complaints
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w: %s", p.pkg, err, complaints.String())
	}
	dirs := map[linked][]string{}
	for packages := json.NewDecoder(bytes.NewReader(out)); ; {
		var listed struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Replace            *struct{ Path, Version string }
			}
		}
		if err := packages.Decode(&listed); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages of %s: %w", p.pkg, err)
		}
		if listed.Module == nil { // of Go
			continue
		}
		m := linked{listed.Module.Path, listed.Module.Version}
		if replaced := listed.Module.Replace; replaced != nil {
			m = linked{replaced.Path, replaced.Version}
		}
		if len(dirs[m]) == 0 {
			dirs[m] = []string{listed.Module.Dir}
		}
		// A license in a directory is that of the packages below it.
		for dir := listed.Dir; len(dir) > len(listed.Module.Dir); dir = filepath.Dir(dir) {
			if !slices.Contains(dirs[m], dir) {
				dirs[m] = append(dirs[m], dir)
			}
		}
	}
}

// isNested reports whether a directory of the repository is a module of its own.
func isNested(source, dir string) bool {
	matches, err := filepath.Glob(filepath.Join(source, dir, "go.mod"))
	return err == nil && len(matches) == 1
}

// sorted are the keys of a map of modules, by path and version.
func sorted[V any](m map[linked]V) []linked {
	keys := make([]linked, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b linked) int {
		return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.version, b.version))
	})
	return keys
}
