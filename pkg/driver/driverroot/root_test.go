// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal fails unless the two are equal.
func equal(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// lay makes files below a directory; a name that ends with / is a directory.
func lay(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o700)
		} else if err == nil {
			err = os.WriteFile(path, nil, 0o700)
		}
		must(t, err)
	}
}

func TestDevices(t *testing.T) {
	const gke = "/home/kubernetes/bin/nvidia"
	tests := map[string]struct { // $ is the test's directory
		root  Root
		files []string
		want  Root
	}{
		"own dev": {Root{Host: "/run/nvidia/driver", Here: "$/driver"}, []string{"driver/dev/nvidiactl"},
			Root{Host: "/run/nvidia/driver", Here: "$/driver"}},
		"no dev, host below here": {Root{Host: gke, Here: "$/host" + gke}, []string{"host" + gke + "/lib64/", "host/dev/nvidiactl"},
			Root{Host: "/", Here: "$/host"}},
		"empty dev, host below here": {Root{Host: gke, Here: "$/host" + gke}, []string{"host" + gke + "/dev/", "host/dev/nvidiactl"},
			Root{Host: "/", Here: "$/host"}},
		"no dev, mounted elsewhere": {Root{Host: gke, Here: "$/driver"}, []string{"driver/lib64/"}, Root{Host: "/", Here: "/"}},
		"no dev, same path":         {Root{Host: "$/driver", Here: "$/driver"}, []string{"driver/lib64/"}, Root{Host: "/", Here: "/"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			in := func(r Root) Root {
				return Root{Host: strings.Replace(r.Host, "$", dir, 1), Here: strings.Replace(r.Here, "$", dir, 1)}
			}
			lay(t, dir, tt.files...)
			equal(t, "devices", in(tt.want), in(tt.root).Devices())
		})
	}
}

func TestFind(t *testing.T) {
	for _, path := range []string{"/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi", "/usr/local/bin/nvidia-smi",
		"/opt/bin/nvidia-smi", "/bin/nvidia-smi", "/usr/sbin/nvidia-smi"} {
		root := t.TempDir()
		lay(t, root, path)
		if got, found := (Root{Host: "/driver", Here: root}).Find("nvidia-smi"); !found || got != path {
			t.Errorf("%s: got %q, %t", path, got, found)
		}
	}
	if got, found := (Root{Host: "/driver", Here: t.TempDir()}).Find("nvidia-smi"); found {
		t.Errorf("empty root: got %q", got)
	}
}

// dynamic is a program of this machine that names a loader, and that loader.
func dynamic(t *testing.T) (program, loader string) {
	t.Helper()
	for _, path := range []string{"/bin/sh", "/usr/bin/env"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		loader, err := loaderOf(f)
		if err := errors.Join(err, f.Close()); err == nil && loader != "" {
			return path, loader
		}
	}
	t.Skip("no dynamic program on this machine")
	return "", ""
}

func TestLaunch(t *testing.T) {
	program, loader := dynamic(t)
	data, err := os.ReadFile(program)
	must(t, err)
	tests := map[string]struct {
		files []string
		want  func(root string) launch
	}{
		// A driver container.
		"dev and loader": {[]string{"dev/null", loader}, func(root string) launch {
			return launch{Path: "/bin/smi", Args: []string{"/bin/smi", "-L"}, Env: environment, Chroot: root}
		}},
		// Container-Optimized OS: entering the root would fail, as the loader is not there.
		"neither": {[]string{"lib64/libnvidia-ml.so.1"}, func(root string) launch {
			return launch{Path: root + "/bin/smi", Args: []string{root + "/bin/smi", "-L"},
				Env: append(append([]string{}, environment...), "LD_LIBRARY_PATH="+root+"/lib64")}
		}},
		"dev without loader": {[]string{"dev/null", "usr/lib64/libnvidia-ml.so.1"}, func(root string) launch {
			return launch{Path: root + "/bin/smi", Args: []string{root + "/bin/smi", "-L"},
				Env: append(append([]string{}, environment...), "LD_LIBRARY_PATH="+root+"/usr/lib64")}
		}},
		"loader without dev": {[]string{loader}, func(root string) launch {
			var dirs []string
			for _, d := range libraryDirs {
				dirs = append(dirs, filepath.Join(root, d))
			}
			return launch{Path: root + loader,
				Args: []string{root + loader, "--library-path", strings.Join(dirs, ":"), root + "/bin/smi", "-L"}, Env: environment}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			lay(t, root, append(tt.files, "bin/")...)
			must(t, os.WriteFile(filepath.Join(root, "bin/smi"), data, 0o700))
			equal(t, "launch", tt.want(root), (Root{Host: "/driver", Here: root}).launch("/bin/smi", []string{"-L"}))
		})
	}
}

// Debian's packages reach program and library by absolute links through /etc/alternatives, which lead a program that is not
// entered into the root out of it.
func TestLaunch_AbsoluteLinks(t *testing.T) {
	program, _ := dynamic(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	lay(t, root, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.1.2", "usr/lib/nvidia/current/", "usr/bin/", "etc/alternatives/")
	data, err := os.ReadFile(program)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"), data, 0o700))
	for link, target := range map[string]string{
		"usr/bin/nvidia-smi":                                        "/etc/alternatives/nvidia--nvidia-smi",
		"etc/alternatives/nvidia--nvidia-smi":                       "/usr/lib/nvidia/current/nvidia-smi",
		"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1":                "/etc/alternatives/nvidia--libnvidia-ml.so.1",
		"etc/alternatives/nvidia--libnvidia-ml.so.1":                "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1",
		"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1": "libnvidia-ml.so.580.1.2",
	} {
		must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	r := Root{Host: "/", Here: root}
	path, found := r.Find("nvidia-smi")
	if !found || path != "/usr/bin/nvidia-smi" {
		t.Fatalf("got %q, %t", path, found)
	}
	smi, libraries := filepath.Join(root, "usr/lib/nvidia/current/nvidia-smi"), filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	want := launch{Path: smi, Args: []string{smi, "-L"},
		Env: append(append([]string{}, environment...), "LD_LIBRARY_PATH="+filepath.Join(libraries, "nvidia/current")+":"+libraries)}
	equal(t, "launch", want, r.launch(path, []string{"-L"}))
}

func TestVersions(t *testing.T) {
	root := t.TempDir()
	lay(t, root, "usr/lib64/libnvidia-ml.so.590.48.01", "usr/lib64/libnvidia-ml.so.1",
		"lib64/libnvidia-ml.so.580.95.05", "usr/lib64/libcuda.so.1.2")
	got, err := (Root{Host: "/driver", Here: root}).Versions()
	if diff := cmp.Diff([]string{"580.95.05", "590.48.01"}, got); diff != "" || err != nil {
		t.Errorf("%v: versions (-want +got):\n%s", err, diff)
	}
}

func FuzzLoaderOf(f *testing.F) {
	if data, err := os.ReadFile("/bin/sh"); err == nil {
		f.Add(data[:min(len(data), 4096)])
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		loader, err := loaderOf(bytes.NewReader(data))
		if err != nil && (loader != "" || !errors.Is(err, errNoELF)) || len(loader) > maxLoaderPath {
			t.Errorf("got %q, %v", loader, err)
		}
	})
}
