// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// documents writes what a release says of itself, and the archives of its programs, which contain the licenses.
func (r *release) documents(ctx context.Context) error {
	i := inventory{version: r.version, commit: r.snapshot.commit, time: r.snapshot.time}
	var programs []program
	for _, arch := range architectures {
		for _, p := range programsOf {
			c, err := r.component(ctx, arch, p.name)
			if err != nil {
				return err
			}
			i.components = append(i.components, c)
			programs = append(programs, c.program)
			for _, inner := range c.carries {
				programs = append(programs, inner.program)
			}
		}
	}
	var err error
	if i.licenses, err = licensesOf(ctx, r.source(), programs); err != nil {
		return err
	}
	system, err := systemLicenses(ctx)
	if err != nil {
		return err
	}
	document, err := bill(i)
	if err != nil {
		return err
	}
	if err := r.write("cleave-"+r.version+".spdx.json", document); err != nil {
		return err
	}
	licenses := thirdParty(i.licenses, system)
	if err := r.write("THIRD_PARTY_LICENSES", licenses); err != nil {
		return err
	}
	if err := r.write("cleave-"+r.version+"-notes.md", []byte(r.notes)); err != nil {
		return err
	}
	return r.archives(licenses)
}

// component is a program of the release with the hook programs that it carries.
func (r *release) component(ctx context.Context, arch, name string) (component, error) {
	c := component{name: name + "-linux-" + arch}
	var err error
	if c.program, err = readProgram(r.built(arch, name)); err != nil {
		return c, err
	}
	if c.arch != arch {
		return c, fmt.Errorf("%s is for %s", c.path, c.arch)
	}
	if name == "cleave-scheduler" { // which is static
		return c, nil
	}
	if c.glibc, err = glibcVersion(ctx, arch); err != nil || name != "cleave-node" {
		return c, err
	}
	hooks, err := filepath.Glob(filepath.Join(r.source(), "pkg/driver/cdi/hook/dist", arch, "*.gz"))
	if err != nil || len(hooks) == 0 {
		return c, errors.Join(fmt.Errorf("find the hook programs for %s: none was built", arch), err)
	}
	for _, path := range hooks {
		hook, err := readProgram(path)
		if err != nil {
			return c, err
		}
		if hook.arch != arch {
			return c, fmt.Errorf("%s is for %s", path, hook.arch)
		}
		base := strings.TrimSuffix(filepath.Base(path), ".gz")
		c.carries = append(c.carries, component{program: hook, name: base + "-linux-" + arch, glibc: c.glibc})
	}
	return c, nil
}

// archives packs the programs, and moves the images to the files of the release.
func (r *release) archives(licenses []byte) error {
	license, err := os.ReadFile(filepath.Join(r.source(), "LICENSE"))
	if err != nil {
		return err
	}
	for _, arch := range architectures {
		for _, p := range programsOf {
			data, err := os.ReadFile(r.built(arch, p.name))
			if err != nil {
				return err
			}
			if err := r.writePacked(p.name+"-"+r.version+"-linux-"+arch+".tar.gz", []entry{
				{p.name, 0o755, data}, {"LICENSE", 0o644, license}, {"THIRD_PARTY_LICENSES", 0o644, licenses},
			}); err != nil {
				return err
			}
			if err := os.Rename(r.image(arch, p.image), filepath.Join(r.dir, p.image+"-"+r.version+"-image-linux-"+arch+".tar")); err != nil {
				return err
			}
		}
	}
	return nil
}

// glibcVersion is the version of the C library for an architecture, as Debian counts it. That for another one is of its
// cross compiler.
func glibcVersion(ctx context.Context, arch string) (string, error) {
	name := "libc6-dev"
	if arch != runtime.GOARCH {
		name += "-" + arch + "-cross"
	}
	out, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat", "${Version}", name).Output()
	if err != nil {
		return "", fmt.Errorf("find the version of the C library in package %s: %w", name, err)
	}
	return crossed.ReplaceAllString(string(out), ""), nil
}

// crossed is what versions of packages for cross compilers have more.
var crossed = regexp.MustCompile(`cross\d+$`)
