// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// architectures that a release is built for.
var architectures = []string{"amd64", "arm64"}

// release is one that is made.
type release struct {
	version string
	// repository is its directory; dir is where the files of the release are written.
	repository, dir string
	dirty           bool

	snapshot snapshot
	notes    string
}

// programsOf are the programs of a release, with their targets in the Makefile and the images that they are in.
var programsOf = []struct{ name, target, image string }{
	{"cleave", "cleave", "cleave-dashboard"},
	{"cleave-node", "cleave-node", "cleave"},
	{"cleave-scheduler", "scheduler", "cleave-scheduler"},
}

// make checks, builds and verifies.
func (r *release) make(ctx context.Context) error {
	started := time.Now()
	var err error
	if r.snapshot, err = snapshotOf(ctx, r.repository, r.dirty); err != nil {
		return err
	}
	changelog, err := r.snapshot.file(ctx, "CHANGELOG.md")
	if err != nil {
		return err
	}
	if r.notes, err = notesOf(r.version, changelog); err != nil {
		return err
	}
	if err := os.RemoveAll(r.work()); err != nil {
		return err
	}
	if err := r.snapshot.export(ctx, r.source()); err != nil {
		return err
	}
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"programs", r.programs}, {"images, a second build with a cache of its own", r.images},
		{"the two builds are the same", r.compare}, {"chart", r.chart}, {"licenses, bill of materials, archives", r.documents},
		{"checksums", r.checksums},
	} {
		begun := time.Now()
		fmt.Printf("==> %s\n", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("release %s: %w", r.version, err)
		}
		fmt.Printf("    %s\n", time.Since(begun).Round(time.Second))
	}
	fmt.Printf("%s of commit %s is in %s, in %s\n", r.version, r.snapshot.commit, r.dir, time.Since(started).Round(time.Second))
	return nil
}

func (r *release) work() string   { return filepath.Join(r.repository, "bin", "release-work") }
func (r *release) source() string { return filepath.Join(r.work(), "source") }

// built is the path of a program, or of another file that was built with it.
func (r *release) built(arch, name string) string { return filepath.Join(r.work(), arch, name) }

// number is the version without its v, as chart and images have it.
func (r *release) number() string { return strings.TrimPrefix(r.version, "v") }

// programs builds those of all architectures with this machine's cache.
func (r *release) programs(ctx context.Context) error {
	for _, arch := range architectures {
		for _, p := range programsOf {
			if err := r.run(ctx, nil, "make", "--no-print-directory", "-C", r.source(), p.target, "GOARCH="+arch, "VERSION="+r.version,
				"BIN="+filepath.Dir(r.built(arch, p.name))); err != nil {
				return err
			}
		}
	}
	return nil
}

// images builds the images from the Dockerfile, which builds the programs in another directory and with another cache.
func (r *release) images(ctx context.Context) error {
	env := []string{"VERSION=" + r.version, "IMAGE_TAG=" + r.number(), "SOURCE=" + r.source(), "SOURCE_DATE_EPOCH=" + r.epoch(),
		"IMAGE_STATE=" + filepath.Join(r.repository, "bin", "buildah"),
		"IMAGE_GOCACHE=" + filepath.Join(r.repository, "bin", "release-gocache")}
	args := append([]string{filepath.Join(r.source(), "hack", "build-images"), filepath.Join(r.work(), "images")}, architectures...)
	return r.run(ctx, env, args...)
}

func (r *release) epoch() string { return strconv.FormatInt(r.snapshot.time.Unix(), 10) }

// compare compares the programs in the images with those that were built outside, bit for bit.
func (r *release) compare(context.Context) error {
	for _, arch := range architectures {
		for _, p := range programsOf {
			image, err := os.ReadFile(r.image(arch, p.image))
			if err != nil {
				return err
			}
			inside, err := fileInImage(image, "usr/bin/"+p.name)
			if err != nil {
				return fmt.Errorf("compare %s for %s: %w", p.name, arch, err)
			}
			outside, err := os.ReadFile(r.built(arch, p.name))
			if err != nil {
				return err
			}
			if !bytes.Equal(inside, outside) {
				return fmt.Errorf("compare %s for %s: two builds of it differ: see docs/release.md#reproduce", p.name, arch)
			}
			fmt.Printf("    sha256 of %s for %s, of both builds: %x\n", p.name, arch, sha256.Sum256(inside))
		}
	}
	return nil
}

// image is the path of an image that was built.
func (r *release) image(arch, name string) string {
	return filepath.Join(r.work(), "images", name+"-linux-"+arch+".tar")
}

// chart packages the chart, with the time of the commit.
func (r *release) chart(ctx context.Context) error {
	if err := r.run(ctx, nil, filepath.Join(r.repository, "bin", "helm"), "package", filepath.Join(r.source(), "deployments/helm/cleave"),
		"--version", r.number(), "--app-version", r.number(), "--destination", r.work()); err != nil {
		return err
	}
	name := "cleave-" + r.number() + ".tgz"
	data, err := os.ReadFile(filepath.Join(r.work(), name))
	if err != nil {
		return err
	}
	entries, err := unpack(data)
	if err != nil {
		return fmt.Errorf("read the chart %s: %w", name, err)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return r.writePacked(name, entries)
}

// writePacked writes an archive of the release.
func (r *release) writePacked(name string, entries []entry) error {
	data, err := pack(entries, r.snapshot.time)
	if err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return r.write(name, data)
}

func (r *release) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(r.dir, name), data, 0o644)
}

// checksums lists the checksums of all files, and reads them once more.
func (r *release) checksums(ctx context.Context) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	list, err := sums(r.dir, names)
	if err != nil {
		return err
	}
	if err := r.write("SHA256SUMS", list); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "sha256sum", "--check", "--strict", "SHA256SUMS")
	command.Dir = r.dir
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("check the checksums: %w: %s", err, out)
	}
	_, err = os.Stdout.Write(list)
	return err
}

// run runs a program of the release, whose output goes to that of this one.
func (r *release) run(ctx context.Context, env []string, args ...string) error {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	// A make that runs this one must not say what is made here.
	command.Env = append(slices.DeleteFunc(command.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "GOARCH", "VERSION"}, name)
	}), env...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}
