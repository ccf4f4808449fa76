// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// pkgTests are the tests of a package that a stage selects.
type pkgTests struct {
	// path is the import path, by which events name the package.
	path  string
	tests []string
}

// testFunc finds the top-level functions that go test counts as tests.
var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z0-9_]\w*)\((?:\w+ )?\*testing\.[TF]\)`)

// find lists the tests that the stage selects, by package. It reads their source: asked with -list, a package of end-to-end
// tests would be compiled, and start its cluster.
func (s stage) find(ctx context.Context, root string) ([]pkgTests, error) {
	if len(s.command) > 0 {
		return nil, nil
	}
	run, err := regexp.Compile(s.run)
	if err != nil {
		return nil, err
	}
	skip, err := regexp.Compile(s.skip)
	if err != nil {
		return nil, err
	}
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles"}, s.packages...)...)
	list.Dir = filepath.Join(root, s.dir)
	var complaints bytes.Buffer
	list.Stderr = &complaints
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w: %s", s.name, err, complaints.String())
	}
	var found []pkgTests
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, ImportPath           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("list the packages of %s: %w", s.name, err)
		}
		tests := pkgTests{path: p.ImportPath}
		for _, file := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			source, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return nil, err
			}
			for _, m := range testFunc.FindAllSubmatch(source, -1) {
				name := string(m[1])
				if run.MatchString(name) && (s.skip == "" || !skip.MatchString(name)) && (s.only == nil || s.only.MatchString(name)) {
					tests.tests = append(tests.tests, name)
				}
			}
		}
		if len(tests.tests) > 0 {
			found = append(found, tests)
		}
	}
}

// goTest is the command line of go test for tests of the stage, and the environment it needs besides. Without tests, it is for
// all that the stage selects.
func (s stage) goTest(root string, packages, tests []string) (args, env []string) {
	// make lint runs go vet. Here it would check all that the tests are built of besides, in each way in which they are built.
	args = []string{"go", "test", "-vet=off"}
	if s.race {
		args = append(args, "-race")
	}
	if s.short {
		args = append(args, "-short")
	}
	if s.cluster {
		args = append(args, "-exec", filepath.Join(root, "hack", "apart"))
		env = append(env, "CLEAVE_E2E=1")
	}
	if s.fresh || tests != nil {
		args = append(args, "-count=1")
	}
	if s.timeout != 0 {
		args = append(args, "-timeout", s.timeout.String())
	}
	run := s.run
	if tests != nil {
		run = anyOf(tests)
	}
	if run != "" {
		args = append(args, "-run", run)
	}
	if s.skip != "" && tests == nil {
		args = append(args, "-skip", s.skip)
	}
	for _, v := range s.env {
		env = append(env, strings.ReplaceAll(v, "{bin}", filepath.Join(root, "bin")))
	}
	return append(args, packages...), env
}

// again is the command that runs tests of the stage alone, for a shell in the repository's root.
func (s stage) again(pkg string, tests []string) string {
	if len(s.command) > 0 {
		return strings.Join(s.command, " ")
	}
	if s.dir == "" {
		_, below, _ := strings.Cut(pkg, "/cleave/")
		pkg = "./" + below
	}
	args, env := s.goTest(".", []string{pkg}, tests)
	for i, a := range args {
		if strings.ContainsAny(a, "^$|() ") {
			args[i] = "'" + a + "'"
		}
		if a == filepath.Join("hack", "apart") {
			args[i] = "$PWD/hack/apart"
		}
	}
	for i := range env {
		env[i] = strings.Replace(env[i], "=bin/", "=$PWD/bin/", 1)
	}
	line := strings.Join(append(env, args...), " ")
	if s.dir != "" {
		line = "(cd " + s.dir + " && " + line + ")"
	}
	return line
}
