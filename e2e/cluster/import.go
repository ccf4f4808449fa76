// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	// BusyboxImage is an image with a shell and the usual small programs. Up
	// imports it.
	BusyboxImage = "cleave.local/busybox:e2e"
	// ExampleImage is the image of deployments/examples. Up gives BusyboxImage that name too, so that the examples run as
	// they are, without a network. It has a tag: without one, the kubelet asks the registry each time
	// (Kubernetes documentation, "Default image pull policy").
	ExampleImage = "busybox:1.37"
	// libraryPrefix is what container runtimes put before the name of an image that has neither a host nor a directory
	// (github.com/distribution/reference, ParseNormalizedNamed).
	libraryPrefix = "docker.io/library/"

	// criNamespace is where containerd keeps what the kubelet uses.
	criNamespace = "k8s.io"
	// managedLabel is what containerd puts on an image that the kubelet can
	// see.
	managedLabel = "io.cri-containerd.image=managed"
	// refName is the annotation of the name of an image in an OCI archive (OCI image specification, "Annotations").
	refName = "org.opencontainers.image.ref.name"
)

// ImportImage makes an image, unless it is in an archive already, and hands it to
// the containerd of every node. Pods can use it when this returns, with
// imagePullPolicy Never or IfNotPresent.
func (c *Cluster) ImportImage(ctx context.Context, image Image) (err error) {
	if image.Archive != "" {
		own, err := nameIn(image.Archive)
		if err != nil {
			return fmt.Errorf("import image %s: %w", image.Ref, err)
		}
		return importArchive(ctx, c, image.Archive, own, image.Ref)
	}
	f, err := os.CreateTemp(c.layout.images(), "image-*.tar")
	if err != nil {
		return fmt.Errorf("import image %s: %w", image.Ref, err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := errors.Join(writeArchive(f, image), f.Close()); err != nil {
		return err
	}
	return importArchive(ctx, c, f.Name(), image.Ref, image.Ref)
}

// importArchive imports the image of an OCI archive, which has its own name there, on every node.
func importArchive(ctx context.Context, c *Cluster, archive, own, ref string) error {
	var imports []func(context.Context) error
	for _, n := range c.Nodes() {
		imports = append(imports, func(ctx context.Context) error {
			if err := n.ctr(ctx, "images", "import", archive); err != nil {
				return fmt.Errorf("import image %s: %w", ref, err)
			}
			if own != ref {
				if err := n.ctr(ctx, "images", "tag", "--force", own, ref); err != nil {
					return fmt.Errorf("name image %s: %w", ref, err)
				}
			}
			return n.waitImage(ctx, ref)
		})
	}
	return inParallel(ctx, imports...)
}

// nameIn is the name of the only image in an OCI archive.
func nameIn(archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	for files := tar.NewReader(f); ; {
		header, err := files.Next()
		if err != nil {
			return "", fmt.Errorf("find index.json in %s: %w", archive, err)
		}
		if clean(header.Name) != "index.json" {
			continue
		}
		var index struct {
			Manifests []descriptor `json:"manifests"`
		}
		if err := json.NewDecoder(files).Decode(&index); err != nil {
			return "", fmt.Errorf("read index.json in %s: %w", archive, err)
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations[refName] == "" {
			return "", fmt.Errorf("%s has %d images, want one with a name", archive, len(index.Manifests))
		}
		return index.Manifests[0].Annotations[refName], nil
	}
}

// waitImage waits until the kubelet would find the image: containerd notifies its
// CRI service of new images in passing.
func (n Node) waitImage(ctx context.Context, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := poll(ctx, pollInterval, func(ctx context.Context) error {
		output, err := n.runCtr(ctx, "images", "list", "name=="+ref)
		if err != nil {
			return err
		}
		if !strings.Contains(string(output), managedLabel) {
			return errors.New("containerd does not offer it to the kubelet")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for image %s: %w", ref, err)
	}
	return nil
}

func (n Node) ctr(ctx context.Context, args ...string) error {
	_, err := n.runCtr(ctx, args...)
	return err
}

func (n Node) runCtr(ctx context.Context, args ...string) ([]byte, error) {
	arguments := append([]string{"--address", n.layout.containerdSocket(), "--namespace", criNamespace}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(n.cluster.state.toolsDir(), "ctr"), arguments...)
	cmd.Env = append(os.Environ(), n.cluster.Environment()...) // Down ends one that outlives this program
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run ctr %s: %w: %s", strings.Join(args, " "), err, lastLines(stderr.Bytes(), 3))
	}
	return stdout.Bytes(), nil
}

// importBasic imports the image that every pod needs and busybox.
func (s startup) importBasic(ctx context.Context) error {
	busybox := File{Path: "bin/busybox", Mode: 0o755, Source: s.state.Host.Busybox}
	pause := Image{
		Ref: pauseImage,
		// The program looks at the name it is called by.
		Files:      []File{busybox, {Path: "bin/sleep", Link: "busybox"}},
		Entrypoint: []string{"/bin/sleep", "2147483647"},
	}
	if err := s.ImportImage(ctx, pause); err != nil {
		return err
	}
	image, err := busyboxImage(ctx, busybox)
	if err != nil {
		return err
	}
	if err := s.ImportImage(ctx, image); err != nil {
		return err
	}
	for _, n := range s.Nodes() {
		if err := n.ctr(ctx, "images", "tag", "--force", BusyboxImage, libraryPrefix+ExampleImage); err != nil {
			return fmt.Errorf("name an image for the examples: %w", err)
		}
		if err := n.waitImage(ctx, libraryPrefix+ExampleImage); err != nil {
			return err
		}
	}
	return nil
}

// ShellFiles are those of an image with a shell, some small programs, and this machine's C library for programs that need one.
func ShellFiles() ([]File, error) {
	const program = 0o755
	files := []File{{Path: "bin/busybox", Source: busyboxPath(), Mode: program}}
	for _, name := range []string{"sh", "ls", "env", "grep", "sort", "mkdir", "mount", "sleep", "tail"} {
		files = append(files, File{Path: "bin/" + name, Link: "busybox"})
	}
	for _, name := range []string{"lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/libc.so.6"} {
		path, err := filepath.EvalSymlinks("/" + name)
		if err != nil {
			return nil, fmt.Errorf("find the C library: %w", err)
		}
		files = append(files, File{Path: name, Source: path, Mode: program})
	}
	return files, nil
}

// busyboxImage has a link for every program that busybox can be.
func busyboxImage(ctx context.Context, busybox File) (Image, error) {
	output, err := exec.CommandContext(ctx, busybox.Source, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("list the programs of %s: %w", busybox.Source, err)
	}
	files := []File{
		busybox,
		{Path: "etc/passwd", Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Path: "etc/group", Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{Path: "root", Mode: fs.ModeDir | 0o700},
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
	for name := range strings.FieldsSeq(string(output)) {
		if name != "busybox" {
			files = append(files, File{Path: "bin/" + name, Link: "busybox"})
		}
	}
	return Image{Ref: BusyboxImage, Files: files, Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/bin"}}, nil
}
