// SPDX-License-Identifier: Apache-2.0

// Command image-root lays out the root file system of an image in a directory: the only list of the files of the images,
// for the Dockerfile and for tests alike.
package main

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// programs is the directory of the program in its image.
const programs = "usr/bin"

// image is what is in an image in addition to its program, the libraries that this links, and the licenses.
type image struct {
	libraries []string
	links     map[string]string
}

// images by their program. That of cleave-scheduler has one file and its licenses: a static program that serves a
// certificate which it makes itself, and reads the API server's in its service account. kubeadm finds the container of the scheduler by
// its command, so that there it runs as kube-scheduler (deployments/kubeadm).
var images = map[string]image{
	"cleave-node":      {libraries: nvmlNeeds, links: hostLinks},
	"cleave":           {}, // as the dashboard, which opens no library
	"cleave-scheduler": {links: map[string]string{programs + "/kube-scheduler": "cleave-scheduler"}},
}

// nvmlNeeds are the libraries that NVIDIA's libnvidia-ml.so.1 links in addition to the C library, which cleave-node loads with dlopen.
// Since glibc 2.34 most are empty, but they have to be there.
var nvmlNeeds = []string{"libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}

// hostLinks make /host, below which the chart mounts the host's /usr, look like the host's root to programs of the driver.
var hostLinks = map[string]string{"host/bin": "usr/bin", "host/sbin": "usr/sbin", "host/lib": "usr/lib", "host/lib64": "usr/lib64"}

// architecture says where the libraries of programs for one architecture are.
type architecture struct {
	// dirs are where distributions keep libraries on a machine of this architecture. They keep their paths in the image,
	// where the loader looks for them by itself.
	dirs []string
	// cross is where Debian keeps them for a compiler on another architecture, home where they are on their own.
	cross, home string
}

// architectures by the machine of ELF files.
var architectures = map[elf.Machine]architecture{
	elf.EM_X86_64:  debian("x86_64-linux-gnu"),
	elf.EM_AARCH64: debian("aarch64-linux-gnu"),
}

// debian is an architecture by its name in Debian's directories; other distributions have no such name in theirs.
func debian(name string) architecture {
	dirs := []string{"/lib64", "/usr/lib64", "/lib/" + name, "/usr/lib/" + name}
	return architecture{dirs: dirs, cross: "/usr/" + name + "/lib", home: "/lib/" + name}
}

func main() {
	program := flag.String("program", "bin/cleave-node", "the program; its name says which image it is")
	licenses := flag.String("licenses", "LICENSE", "files with its license and those of what it links, with commas between")
	output := flag.String("o", "bin/image", "directory to fill; what is in it is removed")
	flag.Parse()
	if err := layOut(*program, strings.Split(*licenses, ","), *output); err != nil {
		fmt.Fprintln(os.Stderr, "image-root:", err)
		os.Exit(1)
	}
}

// layOut fills a directory with the files of a program's image.
func layOut(program string, licenses []string, dir string) error {
	i, ok := images[filepath.Base(program)]
	if !ok {
		return fmt.Errorf("lay out the image of %s: there are those of %v", program, slices.Sorted(maps.Keys(images)))
	}
	files, err := i.list(program, licenses)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("empty the directory: %w", err)
	}
	for _, to := range slices.Sorted(maps.Keys(files)) {
		if err := copyFile(files[to], filepath.Join(dir, to)); err != nil {
			return fmt.Errorf("lay out %s: %w", to, err)
		}
	}
	for _, link := range slices.Sorted(maps.Keys(i.links)) {
		path := filepath.Join(dir, link)
		err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // world-readable
		if err := errors.Join(err, os.Symlink(i.links[link], path)); err != nil {
			return fmt.Errorf("lay out %s: %w", link, err)
		}
	}
	return nil
}

// list is the files of the image, from their path there to where they are now. There is no shell and no package manager.
func (i image) list(program string, licenses []string) (map[string]string, error) {
	files := map[string]string{filepath.Join(programs, filepath.Base(program)): program}
	for _, license := range licenses {
		files[filepath.Join("licenses", filepath.Base(license))] = license
	}
	e, err := read(program)
	if err != nil {
		return nil, err
	}
	needed := e.needed
	if e.loader != "" { // not of a static program
		if files[e.loader], err = e.findLoader(); err != nil {
			return nil, err
		}
		needed = append(needed, i.libraries...)
	}
	for len(needed) > 0 {
		name := needed[0]
		needed = needed[1:]
		path, from, err := e.findLibrary(name)
		if err != nil {
			return nil, err
		}
		if files[path] != "" || filepath.Base(path) == filepath.Base(e.loader) {
			continue
		}
		files[path] = from
		library, err := read(from)
		if err != nil {
			return nil, err
		}
		needed = append(needed, library.needed...)
	}
	return files, nil
}

// binary is a program or library: its machine, the path of its loader, and the names of the libraries that it needs.
type binary struct {
	machine elf.Machine
	loader  string
	needed  []string
}

// read reads of a program or library what it links.
func read(path string) (*binary, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read what %s links: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	b := &binary{machine: f.Machine}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			if err != nil {
				return nil, fmt.Errorf("read the loader of %s: %w", path, err)
			}
			b.loader = string(data[:len(data)-1]) // without the NUL
		}
	}
	if b.needed, err = f.ImportedLibraries(); err != nil {
		return nil, fmt.Errorf("read what %s links: %w", path, err)
	}
	return b, nil
}

func (b *binary) findLoader() (string, error) {
	return firstFile(b.loader, b.loader, filepath.Join(architectures[b.machine].cross, filepath.Base(b.loader)))
}

// findLibrary finds a library for the architecture of the program on this machine, and says where it is in the image.
func (b *binary) findLibrary(name string) (path, from string, err error) {
	a := architectures[b.machine]
	var paths []string
	for _, dir := range append(slices.Clone(a.dirs), a.cross) {
		paths = append(paths, filepath.Join(dir, name))
	}
	from, err = firstFile(name, paths...)
	if path = from; filepath.Dir(from) == a.cross {
		path = filepath.Join(a.home, name)
	}
	return path, from, err
}

// firstFile is the first path where there is a file.
func firstFile(name string, paths ...string) (string, error) {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s at %v: %w", name, paths, fs.ErrNotExist)
}

// copyFile copies a file's content, through links, and whether it may be run.
func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // everybody may look
		return err
	}
	mode := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}
