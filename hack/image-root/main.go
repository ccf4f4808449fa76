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
)

// programs is the directory of the program in its image.
const programs = "usr/bin"

// image is what is in an image in addition to its program, the libraries that this links, and the license.
type image struct {
	libraries []string
	links     map[string]string
}

// images by their program. That of cleave-scheduler has one file and its license: a static program that serves a
// certificate which it makes itself, and reads the API server's in its service account.
var images = map[string]image{
	"cleave":           {libraries: nvmlNeeds, links: hostLinks},
	"cleave-scheduler": {},
}

// nvmlNeeds are the libraries that NVIDIA's libnvidia-ml.so.1 links in addition to the C library, which cleave loads with dlopen.
// Since glibc 2.34 most are empty, but they have to be there.
var nvmlNeeds = []string{"libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}

// hostLinks make /host, below which the chart mounts the host's /usr, look like the host's root to programs of the driver.
var hostLinks = map[string]string{"host/bin": "usr/bin", "host/sbin": "usr/sbin", "host/lib": "usr/lib", "host/lib64": "usr/lib64"}

// libraryDirs are where distributions keep libraries. They keep their paths in the image, where the loader looks for them
// by itself.
var libraryDirs = []string{"/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu"}

func main() {
	program := flag.String("program", "bin/cleave", "the program; its name says which image it is")
	license := flag.String("license", "LICENSE", "its license")
	output := flag.String("o", "bin/image", "directory to fill; what is in it is removed")
	flag.Parse()
	if err := layOut(*program, *license, *output); err != nil {
		fmt.Fprintln(os.Stderr, "image-root:", err)
		os.Exit(1)
	}
}

// layOut fills a directory with the files of a program's image.
func layOut(program, license, dir string) error {
	i, ok := images[filepath.Base(program)]
	if !ok {
		return fmt.Errorf("lay out the image of %s: there are those of %v", program, slices.Sorted(maps.Keys(images)))
	}
	files, err := i.list(program, license)
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
func (i image) list(program, license string) (map[string]string, error) {
	files := map[string]string{filepath.Join(programs, filepath.Base(program)): program, "licenses/LICENSE": license}
	loader, needed, err := linked(program)
	if err != nil {
		return nil, err
	}
	if loader != "" { // not of a static program
		files[loader] = loader
		needed = append(needed, i.libraries...)
	}
	for len(needed) > 0 {
		name := needed[0]
		needed = needed[1:]
		path, err := findLibrary(name)
		if err != nil {
			return nil, err
		}
		if files[path] != "" || path == loader {
			continue
		}
		files[path] = path
		_, more, err := linked(path)
		if err != nil {
			return nil, err
		}
		needed = append(needed, more...)
	}
	return files, nil
}

// linked reads of a program or library the path of its loader and the names of the libraries it needs.
func linked(path string) (loader string, needed []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", nil, fmt.Errorf("read what %s links: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			if err != nil {
				return "", nil, fmt.Errorf("read the loader of %s: %w", path, err)
			}
			loader = string(data[:len(data)-1]) // without the NUL
		}
	}
	needed, err = f.ImportedLibraries()
	if err != nil {
		return "", nil, fmt.Errorf("read what %s links: %w", path, err)
	}
	return loader, needed, nil
}

// findLibrary finds a library of this machine.
func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("find library %s in %v: %w", name, libraryDirs, fs.ErrNotExist)
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
