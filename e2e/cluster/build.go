// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// heartbeat is how often a build that takes long says that it is alive.
const heartbeat = 15 * time.Second

// program is one that is built from a Go module of its own.
type program struct {
	name   string
	pkg    string
	module string // directory of the nested module
	dir    string // directory that the program is built into
	flags  string // linker flags
	tags   string // build tags
	cgo    bool   // compile C, too
}

// programs lists what a cluster runs. The small ones come first: a broken
// set-up shows early.
func programs(o Options) []program {
	tools := filepath.Join(o.BinDir, "tools")
	etcd := filepath.Join(o.Source, "e2e", "tools", "etcd")
	containerd := filepath.Join(o.Source, "e2e", "tools", "containerd")
	runc := filepath.Join(o.Source, "e2e", "tools", "runc")
	list := []program{
		{"etcd", "go.etcd.io/etcd/server/v3", etcd, tools, "-s -w", "", false},
		{"runc", "github.com/opencontainers/runc", runc, tools, "-s -w", "seccomp", true},
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		list = append(list, program{name, "github.com/containerd/containerd/v2/cmd/" + name, containerd, tools, "-s -w", "", false})
	}
	module := filepath.Join(o.Source, "e2e", "kubernetes", "v"+minorOf(o.Version))
	for _, name := range []string{"kubectl", "kube-scheduler", "kube-apiserver", "kube-controller-manager", "kubelet"} {
		list = append(list, program{name, "k8s.io/kubernetes/cmd/" + name, module, filepath.Join(o.BinDir, "v"+o.Version),
			kubernetesFlags(o.Version), kubernetesTags, false})
	}
	if !o.ControlPlane {
		return list
	}
	controlPlane := []string{"etcd", "kube-apiserver", "kube-scheduler"}
	return slices.DeleteFunc(list, func(p program) bool { return !slices.Contains(controlPlane, p.name) })
}

// kubernetesTags are those of Kubernetes' own builds (hack/lib/golang.sh).
const kubernetesTags = "selinux,notest,grpcnotrace"

// kubernetesFlags set the version, without which the API server refuses to
// start.
func kubernetesFlags(version string) string {
	major, minor, _ := strings.Cut(minorOf(version), ".")
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags, "-X", pkg+".gitVersion=v"+version, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor)
	}
	return strings.Join(flags, " ")
}

// Build builds the programs of a cluster that are missing or stem from another
// version of their module. Up does it too; a build of its own is for those who
// want it done beforehand.
func Build(ctx context.Context, opts Options) error {
	o, err := opts.withDefaults()
	if err != nil {
		return err
	}
	return install(ctx, o)
}

// BuildPrometheus builds Prometheus and promtool if they are missing, and returns the directory that they are in. No cluster runs
// them: they take some minutes to build.
func BuildPrometheus(ctx context.Context, opts Options) (string, error) {
	// Without the tag, the clients of all clouds in which targets can be discovered are compiled.
	prometheus := program{pkg: "github.com/prometheus/prometheus/cmd/", tags: "remove_all_sd", flags: "-s -w"}
	return buildTools(ctx, opts, "prometheus", prometheus, "promtool", "prometheus")
}

// BuildDRATestDriver builds the DRA driver with which Kubernetes tests itself, if it is missing, and returns its
// path. It is of the newest Kubernetes, whichever the cluster runs.
func BuildDRATestDriver(ctx context.Context, opts Options) (string, error) {
	const name = "test-driver"
	kubernetes := program{pkg: "k8s.io/kubernetes/test/e2e/dra/", flags: kubernetesFlags(DefaultVersion), tags: kubernetesTags}
	dir, err := buildTools(ctx, opts, "dratestdriver", kubernetes, name)
	return filepath.Join(dir, name), err
}

// BuildKueue builds the Kueue that queues are tested with, if it is missing, and returns its path.
func BuildKueue(ctx context.Context, opts Options) (string, error) {
	const name = "kueue"
	dir, err := buildTools(ctx, opts, name, program{pkg: "sigs.k8s.io/kueue/cmd/", flags: "-s -w"}, name)
	return filepath.Join(dir, name), err
}

// BuildNeighbors builds the DRA drivers of CPUs and network cards that Cleave's claims are aligned with, if they are missing, and returns
// the directory that they are in.
func BuildNeighbors(ctx context.Context, opts Options) (string, error) {
	cpus := program{pkg: "github.com/kubernetes-sigs/dra-driver-cpu/cmd/", flags: "-s -w"}
	if _, err := buildTools(ctx, opts, "dracpu", cpus, "dracpu"); err != nil {
		return "", err
	}
	return buildTools(ctx, opts, "dranet", program{pkg: "sigs.k8s.io/dranet/cmd/", flags: "-s -w"}, "dranet")
}

// BuildFMA builds the controllers and the requester of llm-d's fast model actuation, if they are missing, and returns the directory that
// they are in.
func BuildFMA(ctx context.Context, opts Options) (string, error) {
	fma := program{pkg: "github.com/llm-d-incubation/llm-d-fast-model-actuation/cmd/", flags: "-s -w"}
	return buildTools(ctx, opts, "fma", fma, "launcher-populator", "dual-pods-controller", "requester")
}

// BuildDriverUpgrade builds the program that upgrades drivers as NVIDIA's GPU operator does, if it is missing, and returns its path.
func BuildDriverUpgrade(ctx context.Context, opts Options) (string, error) {
	const name = "driver-upgrade"
	dir, err := buildTools(ctx, opts, "gpuoperator", program{pkg: "github.com/cleave-dra/cleave/e2e/tools/gpuoperator/", flags: "-s -w"}, name)
	return filepath.Join(dir, name), err
}

// BuildDevicePlugin builds NVIDIA's device plugin and its MPS daemon, if they are missing, and returns the directory that they are in. They
// find the symbols of NVML when they load it, as go-nvml has it.
func BuildDevicePlugin(ctx context.Context, opts Options) (string, error) {
	plugin := program{pkg: "github.com/NVIDIA/k8s-device-plugin/cmd/", flags: "-s -w -extldflags=-Wl,-z,lazy", cgo: true}
	return buildTools(ctx, opts, "deviceplugin", plugin, "nvidia-device-plugin", "mps-control-daemon")
}

// BuildTools builds what tests run besides a cluster, those first that are needed first. They build it themselves where it is
// missing; this is for those who want it done meanwhile.
func BuildTools(ctx context.Context, opts Options) error {
	for _, build := range []func(context.Context, Options) (string, error){
		BuildDRATestDriver, BuildPrometheus, BuildKueue, BuildNeighbors, BuildFMA, BuildDriverUpgrade, BuildDevicePlugin,
	} {
		if _, err := build(ctx, opts); err != nil {
			return err
		}
	}
	_, err := Chromium(ctx, opts.Output)
	return err
}

// buildTools builds programs of a module of e2e/tools that are missing, and returns the directory that they are in. kind has
// what they have in common; its package is their directory.
func buildTools(ctx context.Context, opts Options, module string, kind program, names ...string) (string, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return "", err
	}
	kind.module, kind.dir = filepath.Join(o.Source, "e2e", "tools", module), filepath.Join(o.BinDir, "tools")
	var todo []program
	for _, name := range names {
		p := kind
		p.name, p.pkg = name, kind.pkg+name
		if fresh, err := p.isFresh(); err != nil {
			return "", err
		} else if !fresh {
			todo = append(todo, p)
		}
	}
	return kind.dir, build(ctx, o, todo)
}

// ModuleDir is where the source of a module is that a directory of e2e/tools below the root of the repository needs.
func ModuleDir(ctx context.Context, source, tool, module string) (string, error) {
	find := exec.CommandContext(ctx, goProgram(), "list", "-m", "-f", "{{.Dir}}", module)
	find.Dir = filepath.Join(source, "e2e", "tools", tool)
	dir, err := find.Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", module, err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// install installs and builds what is missing.
func install(ctx context.Context, o Options) error {
	todo, err := outdated(o)
	if err != nil {
		return err
	}
	if err := installPackages(ctx, o, len(todo) > 0); err != nil {
		return err
	}
	return build(ctx, o, todo)
}

// outdated are the programs that are missing or stem from another version of their module.
func outdated(o Options) ([]program, error) {
	var todo []program
	for _, p := range programs(o) {
		fresh, err := p.isFresh()
		if err != nil {
			return nil, err
		}
		if !fresh {
			todo = append(todo, p)
		}
	}
	return todo, nil
}

func build(ctx context.Context, o Options, todo []program) error {
	if len(todo) == 0 {
		return nil
	}
	if err := os.MkdirAll(o.BinDir, 0o755); err != nil {
		return fmt.Errorf("create the directory of the programs: %w", err)
	}
	unlock, err := lock(ctx, o.BinDir, o.Output)
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Fprintf(o.Output, "building %d programs into %s (once; about 10 minutes on two cores when nothing is cached)\n", len(todo), o.BinDir)
	for i, p := range todo {
		if err := p.build(ctx, o.Output, fmt.Sprintf("%d of %d", i+1, len(todo))); err != nil {
			return err
		}
	}
	return nil
}

func (p program) path() string  { return filepath.Join(p.dir, p.name) }
func (p program) stamp() string { return filepath.Join(p.dir, "."+p.name+".stamp") }

// source is a digest of all that decides what the program is.
func (p program) source() (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n", p.pkg, p.flags)
	if p.tags != "" {
		fmt.Fprintf(sum, "%s\n", p.tags)
	}
	// A program of this repository has its source in the module, one of others nothing.
	own, err := filepath.Glob(filepath.Join(p.module, p.name, "*.go"))
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", p.name, err)
	}
	for _, path := range append([]string{filepath.Join(p.module, "go.mod"), filepath.Join(p.module, "go.sum")}, own...) {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read the module of %s: %w", p.name, err)
		}
		fmt.Fprintf(sum, "%d\n", len(data))
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (p program) isFresh() (bool, error) {
	source, err := p.source()
	if err != nil {
		return false, err
	}
	stamp, err := os.ReadFile(p.stamp())
	return err == nil && string(stamp) == source && isProgram(p.path()), nil
}

// build runs the Go compiler, with a sign of life while it works.
func (p program) build(ctx context.Context, out io.Writer, which string) error {
	// Another build may have made it while this one waited for its turn.
	if fresh, err := p.isFresh(); err != nil || fresh {
		return err
	}
	source, err := p.source()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("create the directory of %s: %w", p.name, err)
	}
	temporary := p.path() + ".new"
	// Without debug information, as the Makefile compiles what is in the same cache.
	cmd := exec.CommandContext(ctx, goProgram(), "build", "-buildvcs=false", "-mod=readonly", "-trimpath", "-gcflags=all=-dwarf=false",
		"-tags", p.tags, "-ldflags", p.flags, "-o", temporary, p.pkg)
	cmd.Dir = p.module
	cgo := "0"
	if p.cgo {
		cgo = "1"
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOWORK=off", "GOFLAGS=")
	// An interrupt lets the compiler remove its work directory.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second

	fmt.Fprintf(out, "building %s (%s)\n", p.name, which)
	start := time.Now()
	stop := beat(out, func() string {
		return fmt.Sprintf("building %s (%s): %s so far", p.name, which, time.Since(start).Round(time.Second))
	})
	output, err := cmd.CombinedOutput()
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("build %s: %w", p.name, ctx.Err())
		}
		return fmt.Errorf("build %s in %s: %w\n%s", p.name, p.module, err, indent(lastLines(output, 20)))
	}
	if err := os.Rename(temporary, p.path()); err != nil {
		return fmt.Errorf("put %s in place: %w", p.name, err)
	}
	if err := writeFile(p.stamp(), []byte(source)); err != nil {
		return err
	}
	fmt.Fprintf(out, "built %s (%s) in %s\n", p.name, which, time.Since(start).Round(time.Second))
	return nil
}

// beat writes a line at every heartbeat until the returned function is called,
// which returns when the last line is written.
func beat(out io.Writer, line func() string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-quit:
				return
			case <-ticker.C:
				fmt.Fprintln(out, line())
			}
		}
	}()
	return func() { close(quit); <-done }
}

// goProgram is the Go command on the path, else "go", whose absence the
// operating system then reports by name.
func goProgram() string {
	if path, err := exec.LookPath("go"); err == nil {
		return path
	}
	if isProgram("/usr/local/go/bin/go") {
		return "/usr/local/go/bin/go"
	}
	return "go"
}
