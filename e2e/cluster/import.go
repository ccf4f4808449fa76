// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
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
)

// ImportImage makes an image and hands it to containerd. Pods can use it when
// this returns, with imagePullPolicy Never or IfNotPresent.
func (c *Cluster) ImportImage(ctx context.Context, image Image) error {
	return c.images().add(ctx, image)
}

// images are those that containerd has.
type images struct {
	layout layout
	state  state
}

func (c *Cluster) images() images { return images{c.layout, c.state} }

func (i images) add(ctx context.Context, image Image) (err error) {
	f, err := os.CreateTemp(i.layout.images(), "image-*.tar")
	if err != nil {
		return fmt.Errorf("import image %s: %w", image.Ref, err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	if err := errors.Join(writeArchive(f, image), f.Close()); err != nil {
		return err
	}
	if err := i.ctr(ctx, "images", "import", f.Name()); err != nil {
		return fmt.Errorf("import image %s: %w", image.Ref, err)
	}
	return i.wait(ctx, image.Ref)
}

// wait waits until the kubelet would find the image: containerd notifies its
// CRI service of new images in passing.
func (i images) wait(ctx context.Context, ref string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := poll(ctx, pollInterval, func(ctx context.Context) error {
		output, err := i.runCtr(ctx, "images", "list", "name=="+ref)
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

func (i images) ctr(ctx context.Context, args ...string) error {
	_, err := i.runCtr(ctx, args...)
	return err
}

func (i images) runCtr(ctx context.Context, args ...string) ([]byte, error) {
	arguments := append([]string{"--address", i.layout.containerdSocket(), "--namespace", criNamespace}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(i.state.toolsDir(), "ctr"), arguments...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run ctr %s: %w: %s", strings.Join(args, " "), err, lastLines(stderr.Bytes(), 3))
	}
	return stdout.Bytes(), nil
}

// addBasic imports the image that every pod needs and busybox.
func (i images) addBasic(ctx context.Context) error {
	busybox := File{Path: "bin/busybox", Mode: 0o755, Source: i.state.Host.Busybox}
	pause := Image{
		Ref: pauseImage,
		// The program looks at the name it is called by.
		Files:      []File{busybox, {Path: "bin/sleep", Link: "busybox"}},
		Entrypoint: []string{"/bin/sleep", "2147483647"},
	}
	if err := i.add(ctx, pause); err != nil {
		return err
	}
	image, err := busyboxImage(ctx, busybox)
	if err != nil {
		return err
	}
	if err := i.add(ctx, image); err != nil {
		return err
	}
	if err := i.ctr(ctx, "images", "tag", "--force", BusyboxImage, libraryPrefix+ExampleImage); err != nil {
		return fmt.Errorf("name an image for the examples: %w", err)
	}
	return i.wait(ctx, libraryPrefix+ExampleImage)
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
