// SPDX-License-Identifier: Apache-2.0

package launchers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// timeout bounds every test on a busy machine.
	timeout = 10 * time.Minute
	// namespace is that of the recipe.
	namespace = "fma"
	// images are the names that the recipe has, and version that of its programs.
	images  = "ghcr.io/llm-d-incubation/llm-d-fast-model-actuation/"
	version = ":v0.6.2"
)

// bed is a node with the controllers of fast model actuation.
type bed struct {
	client workload.Client
	gpus   *node.Node
	source string
	// rules is the file of the policy that the node's label names.
	rules string
	// programs are those that run besides, with their logs.
	programs []*process.Program
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{Dir: "/var/lib/cleave-launchers"},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, tearDown)) }

func setUp(ctx context.Context, client workload.Client) error {
	env = &bed{client: client, source: tests.Options.Source}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	programs, err := cluster.BuildFMA(ctx, tests.Options)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context, string) error{
		env.startGPUs, env.importImages, env.define, env.startScheduler, env.startControllers,
	} {
		if err := step(ctx, programs); err != nil {
			return err
		}
	}
	return nil
}

// tearDown ends what does not end with the cluster.
func tearDown(context.Context) (err error) {
	if env != nil {
		for _, p := range env.programs {
			err = errors.Join(err, p.End(syscall.SIGKILL))
		}
	}
	return err
}

// bin is the path of a program below bin/.
func (b *bed) bin(name string) string { return filepath.Join(b.source, "bin", name) }

// offer writes the rules of the policy "launchers".
func (b *bed) offer(rules string) error {
	text := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: launchers}\nrules: " + rules + "\n"
	return os.WriteFile(b.rules, []byte(text), 0o600)
}

// startGPUs starts a node of eight GPUs, whose label names a policy.
func (b *bed) startGPUs(ctx context.Context, _ string) error {
	dir, err := b.client.Cluster.GuestDir("node")
	if err != nil {
		return err
	}
	b.rules = filepath.Join(dir, "policy.yaml")
	if err := b.offer("[]"); err != nil {
		return err
	}
	if err := b.client.LabelNode(ctx, b.client.Cluster.NodeName(), v1alpha1.PolicyLabel, new("launchers")); err != nil {
		return err
	}
	b.gpus, err = node.Run(ctx, node.Options{
		Cluster: b.client.Cluster, Bin: b.bin(""), Model: "hgx-h100", Dir: dir, Flags: []string{"--policy", b.rules},
	})
	if err != nil {
		return err
	}
	return b.client.CreateFile(ctx, "", filepath.Join(b.source, "deployments", "manifests", "deviceclasses.yaml"))
}

// importImages makes the images of the recipe: the requester, and what stands in for the launcher. nvidia-smi, which the claim brings,
// needs a C library.
func (b *bed) importImages(ctx context.Context, programs string) error {
	standin := filepath.Join(filepath.Dir(b.rules), "standin")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", standin, "./e2e/launchers/standin")
	build.Dir, build.Env = b.source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in for the launcher: %w: %s", err, out)
	}
	const program = 0o755
	files, err := cluster.ShellFiles()
	if err != nil {
		return err
	}
	variables := []string{"PATH=/bin:/usr/bin"}
	launcher := append([]cluster.File{{Path: "bin/python3", Source: standin, Mode: program}, {Path: "bin/bash", Link: "python3"}}, files...)
	requester := append([]cluster.File{{Path: "app/requester", Source: filepath.Join(programs, "requester"), Mode: program}}, files...)
	return errors.Join(
		b.client.Cluster.ImportImage(ctx, cluster.Image{Ref: images + "launcher" + version, Files: launcher, Env: variables}),
		b.client.Cluster.ImportImage(ctx, cluster.Image{Ref: images + "requester" + version, Files: requester, Env: variables,
			Entrypoint: []string{"/app/requester"}}))
}

// define creates the kinds of fast model actuation.
func (b *bed) define(ctx context.Context, _ string) error {
	dir, err := cluster.ModuleDir(ctx, b.source, "fma", "github.com/llm-d-incubation/llm-d-fast-model-actuation")
	if err != nil {
		return err
	}
	_, err = b.client.Kubectl(ctx, "", "apply", "--server-side", "-f", filepath.Join(dir, "config", "crd"))
	return err
}

// startScheduler starts cleave-scheduler beside the cluster's own, as the chart has it.
func (b *bed) startScheduler(ctx context.Context, _ string) error {
	dir, err := b.client.Cluster.GuestDir("scheduler")
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "config.yaml")
	text, err := release.SchedulerConfig(b.source, b.client.Cluster.Kubeconfig(), 500, nil)
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return fmt.Errorf("write the configuration of cleave-scheduler: %w", err)
	}
	command := exec.Command(b.bin("cleave-scheduler"), "--config="+config, "-v=4") //nolint:noctx // tearDown ends it
	p, _, err := release.RunScheduler(ctx, command, filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	b.programs = append(b.programs, p)
	return nil
}

// startControllers starts the controllers of fast model actuation.
func (b *bed) startControllers(ctx context.Context, programs string) error {
	ports, err := cluster.FreePorts(ctx, "", 2)
	if err != nil {
		return err
	}
	for name, flags := range map[string][]string{
		"launcher-populator":   nil,
		"dual-pods-controller": {fmt.Sprintf("--metrics-port=%d", ports[0]), fmt.Sprintf("--debug-port=%d", ports[1])},
	} {
		dir, err := b.client.Cluster.GuestDir(name)
		if err != nil {
			return err
		}
		flags = append(flags, "--kubeconfig="+b.client.Cluster.Kubeconfig(), "--namespace="+namespace, "--v=5")
		command := exec.Command(filepath.Join(programs, name), flags...) //nolint:noctx // tearDown ends it
		p, err := process.Start(command, filepath.Join(dir, "log"))
		if err != nil {
			return err
		}
		b.programs = append(b.programs, p)
	}
	return nil
}

// running is an error if one of the programs has ended.
func (b *bed) running() error {
	for _, p := range b.programs {
		select {
		case <-p.Ended():
			return fmt.Errorf("a program has ended: %w; its log ends with:\n%s", p.Err(), p.LogTail(10))
		default:
		}
	}
	return nil
}

// must ends the test if there is an error, with what there is to see of it.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Log(diagnosis())
		t.Fatal(err)
	}
}

func diagnosis() string {
	text := env.client.Diagnosis(namespace, corev1.NamespaceDefault)
	for _, p := range env.programs {
		text += "\n" + p.LogTail(25)
	}
	return text
}
