// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

const modprobeUsage = `nvidia-modprobe of a simulated node. It knows:
  nvidia-modprobe [-c MINOR]...    make /dev/nvidia<MINOR>, or /dev/nvidiactl for 255
  nvidia-modprobe -u -c 0          load nvidia-uvm and make /dev/nvidia-uvm and /dev/nvidia-uvm-tools
  nvidia-modprobe -m               make /dev/nvidia-modeset
  nvidia-modprobe [-f FILE]...     make the node in /dev/nvidia-caps of a file below /proc/driver/nvidia/capabilities`

// runModprobe simulates nvidia-modprobe, as far as it is known here.
func runModprobe(args []string) error {
	var uvm bool
	var minors []int
	var capabilities []string
	for i := 0; i < len(args); i++ {
		value := func() string { // of an option: attached, or the next argument
			if attached := args[i][2:]; attached != "" || i+1 == len(args) {
				return attached
			}
			i++
			return args[i]
		}
		switch arg := args[i]; {
		case arg == "-u":
			uvm = true
		case arg == "-m":
			minors = append(minors, 254)
		case strings.HasPrefix(arg, "-f"):
			capabilities = append(capabilities, value())
		case strings.HasPrefix(arg, "-c"):
			number := value()
			minor, err := strconv.Atoi(number)
			if err != nil {
				return usagef("%q is no minor number\n%s", number, modprobeUsage)
			}
			minors = append(minors, minor)
		default:
			return usagef("unknown argument %q\n%s", arg, modprobeUsage)
		}
	}
	n, err := sim.Open(smiRoot())
	if err != nil {
		return err
	}
	if err := n.Files().Modprobe(uvm, minors...); err != nil {
		return err
	}
	for _, file := range capabilities {
		if err := n.Files().ModprobeCapability(file); err != nil {
			return err
		}
	}
	return nil
}

// newNodes is the command that takes device files away or spoils them.
func newNodes() *cobra.Command {
	var remove, spoil, libraries string
	c := onRoot("nodes [--remove NAME,...] [--spoil NAME,...] [--replace-libraries VERSION]",
		"Remove device files or libraries, or make them wrong", "", func(n *sim.Node) error {
			names := func(list string) []string {
				return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
			}
			err := errors.Join(n.Files().RemoveDeviceNodes(names(remove)...), n.Files().SpoilDeviceNodes(names(spoil)...))
			if libraries != "" {
				err = errors.Join(err, n.Files().ReplaceLibraries(libraries))
			}
			return err
		})
	c.Flags().StringVar(&remove, "remove", "", "`names` of device files to remove, such as nvidia-uvm,nvidia0")
	c.Flags().StringVar(&spoil, "spoil", "", "`names` of device files that get a major of no driver")
	c.Flags().StringVar(&libraries, "replace-libraries", "",
		"replace the libraries by those of another `version`, and leave the loaded driver as it is")
	return c
}

// layout are the options of how the files of a node lie.
func (f *createFlags) layout(self string) ([]sim.Option, error) {
	var opts []sim.Option
	if f.devRoot != "" {
		dir, err := filepath.Abs(f.devRoot)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sim.WithDevRoot(dir))
	}
	if f.flat {
		opts = append(opts, sim.WithFlatLayout())
	}
	if f.noControlNodes {
		opts = append(opts, sim.WithoutControlNodes())
	}
	if f.passThrough {
		opts = append(opts, sim.WithPassThrough())
	}
	if f.noModprobe {
		opts = append(opts, sim.WithoutModprobe())
	}
	programs := filepath.Join(filepath.Dir(self), "nvidia-programs")
	switch _, err := os.Stat(programs); {
	case err == nil:
		opts = append(opts, sim.WithPrograms(programs))
	case errors.Is(err, fs.ErrNotExist):
		programs = ""
		opts = append(opts, sim.WithPrograms(self))
	}
	if f.libc {
		if programs == "" {
			return nil, fmt.Errorf("no dynamic programs next to %s: build them with \"make sim\"", self)
		}
		files, err := needed(programs)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sim.WithFiles(files...))
	}
	return opts, nil
}

// needed lists the loader and the libraries of a program.
func needed(program string) ([]string, error) {
	loader, err := interpreter(program)
	if err != nil {
		return nil, err
	}
	output, err := exec.Command(loader, "--list", program).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("find the libraries of %s: %w: %s", program, err, output)
	}
	files := []string{loader}
	for line := range strings.Lines(string(output)) {
		if _, path, found := strings.Cut(line, " => "); found {
			path, _, _ = strings.Cut(path, " (")
			files = append(files, strings.TrimSpace(path))
		}
	}
	return files, nil
}

// interpreter is the loader of a program.
func interpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			data, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(data), "\x00"), err
		}
	}
	return "", fmt.Errorf("%s is linked statically", program)
}
