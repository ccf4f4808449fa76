// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// hostPackage is a Debian package with what is not built from a Go module, or
// is needed to build it: runc uses libseccomp.
type hostPackage struct {
	name  string
	needs string
	found func() bool
	// building says that only a build needs it: programs that were built elsewhere run without it.
	building bool
}

// cniDirs are where distributions put the network plugins.
var cniDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// cniPlugins are the network plugins that the pod network uses.
var cniPlugins = []string{"host-local", "loopback", "ptp"}

func hostPackages() []hostPackage {
	return []hostPackage{
		{"libseccomp-dev", "the headers of libseccomp", func() bool { return isFile("/usr/include/seccomp.h") }, true},
		{"pkg-config", "the program pkg-config", func() bool { _, err := exec.LookPath("pkg-config"); return err == nil }, true},
		{"busybox-static", "a static busybox", func() bool { return busyboxPath() != "" }, false},
		{"containernetworking-plugins", "the network plugins " + strings.Join(cniPlugins, ", "), func() bool { return cniDir() != "" }, false},
		// For several nodes, and for hack/apart, which has no network to install it.
		{"iproute2", "the program ip", func() bool { _, err := exec.LookPath("ip"); return err == nil }, false},
	}
}

// busyboxPath finds a busybox without an ELF interpreter: it must run in an
// image that holds nothing else.
func busyboxPath() string {
	for _, path := range []string{"/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"} {
		f, err := elf.Open(path)
		if err != nil {
			continue
		}
		static := !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
		_ = f.Close() // only read
		if static {
			return path
		}
	}
	return ""
}

func cniDir() string {
	for _, directory := range cniDirs {
		if !slices.ContainsFunc(cniPlugins, func(p string) bool { return !isProgram(filepath.Join(directory, p)) }) {
			return directory
		}
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// installPackages installs the Debian packages whose programs are missing. Unless programs are to be built, those that
// only a build needs are left out.
func installPackages(ctx context.Context, o Options, building bool) error {
	return aptInstall(ctx, o.Output, missingPackages(building))
}

// Chromium returns the path of Debian's browser, which it installs if it is missing.
func Chromium(ctx context.Context, out io.Writer) (string, error) {
	const path = "/usr/bin/chromium"
	p := hostPackage{"chromium", "the program " + path, func() bool { return isProgram(path) }, false}
	if p.found() {
		return path, nil
	}
	return path, aptInstall(ctx, out, []hostPackage{p})
}

func aptInstall(ctx context.Context, out io.Writer, missing []hostPackage) error {
	if len(missing) == 0 {
		return nil
	}
	names := make([]string, len(missing))
	for i, p := range missing {
		names[i] = p.name
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		needs := make([]string, len(missing))
		for i, p := range missing {
			needs[i] = p.needs
		}
		return fmt.Errorf("install %s: this machine has no apt-get; install by other means: %s",
			strings.Join(names, ", "), strings.Join(needs, "; "))
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", strings.Join(names, " "))
	// A mirror that fails once is asked again.
	install := append([]string{"-o", "Acquire::Retries=3", "install", "--yes", "--no-install-recommends"}, names...)
	if aptGet(ctx, install...) != nil {
		// The package lists of a fresh machine are empty or old.
		if err := aptGet(ctx, "-o", "Acquire::Retries=3", "update"); err != nil {
			return fmt.Errorf("install %s: %w", strings.Join(names, ", "), err)
		}
		if err := aptGet(ctx, install...); err != nil {
			return fmt.Errorf("install %s: %w", strings.Join(names, ", "), err)
		}
	}
	for _, p := range missing {
		if !p.found() {
			return fmt.Errorf("install %s: the package is installed but %s is not where it is looked for", p.name, p.needs)
		}
	}
	return nil
}

func missingPackages(building bool) []hostPackage {
	return slices.DeleteFunc(hostPackages(), func(p hostPackage) bool { return p.building && !building || p.found() })
}

func aptGet(ctx context.Context, args ...string) error {
	// Another installation may be at work; it is waited for.
	args = append([]string{"-o", "DPkg::Lock::Timeout=120"}, args...)
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run apt-get %s: %w\n%s", args[2], errors.Join(err, ctx.Err()), indent(lastLines(output, 8)))
	}
	return nil
}

// lastLines returns the last n lines of a text.
func lastLines(data []byte, n int) string {
	lines := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return string(bytes.Join(lines, []byte("\n")))
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}
