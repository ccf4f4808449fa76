// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// timeout bounds every step on a busy machine.
	timeout = 6 * time.Minute
	// namespace is that of pods that use GPUs, operator that of the device plugin.
	namespace, operator = metav1.NamespaceDefault, "gpu-operator"
	// pluginImage is that of the device plugin.
	pluginImage = "cleave.local/nvidia-device-plugin:e2e"
	// configLabel names a node's configuration of the device plugin.
	configLabel = "nvidia.com/device-plugin.config"
)

// place is a node, by its configuration of the device plugin.
type place struct {
	cluster.Node
	index  int
	config string
	labels map[string]string
	gpus   *node.Node
}

// bed is a cluster whose nodes have the device plugin.
type bed struct {
	client  workload.Client
	release *release.Bed
	source  string
	// admin is the directory in which the commands of the documentation run.
	admin  string
	places []*place
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

// configs are those of testdata/operator.yaml, with what labels feature discovery gives their nodes.
var configs = []place{
	{config: "mixed", labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig.strategy": "mixed"}},
	{config: "sliced", labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}},
	{config: "mps", labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/mps.capable": "true"}},
}

// made are the partitions of the MIG manager on the first GPU of the node "mixed".
var made = []string{"1g.10gb", "1g.10gb", "2g.20gb"}

var tests = workload.Suite{
	Variable: "CLEAVE_E2E", On: "a local Kubernetes of its own (make test-all)",
	Options: cluster.Options{
		Dir: "/var/lib/cleave-migration", Nodes: len(configs),
		NodeLabels: map[string]string{release.NodeLabel: "true", "nvidia.com/gpu.deploy.device-plugin": "true"},
	},
}

func TestMain(m *testing.M) { os.Exit(tests.Run(m, setUp, nil)) }

func setUp(ctx context.Context, client workload.Client) (err error) {
	env = &bed{client: client, source: tests.Options.Source}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	programs, err := cluster.BuildDevicePlugin(ctx, tests.Options)
	if err != nil {
		return err
	}
	if env.release, err = release.Prepare(ctx, client.Cluster, env.source, "hgx-h100"); err != nil {
		return err
	}
	if err := env.importPlugin(ctx, programs); err != nil {
		return err
	}
	for i, n := range client.Cluster.Nodes() {
		p := configs[i]
		p.Node, p.index, p.gpus = n, i, env.release.Nodes[i]
		env.places = append(env.places, &p)
		for key, value := range p.labels {
			if err := client.LabelNode(ctx, n.Name(), key, &value); err != nil {
				return err
			}
		}
		if err := client.LabelNode(ctx, n.Name(), configLabel, &p.config); err != nil {
			return err
		}
	}
	if err := env.partition(ctx, env.places[0]); err != nil {
		return err
	}
	return env.startPlugin(ctx)
}

// importPlugin makes an image of the device plugin's programs, with a shell and the C library.
func (b *bed) importPlugin(ctx context.Context, programs string) error {
	files, err := cluster.ShellFiles()
	if err != nil {
		return err
	}
	for _, name := range []string{"nvidia-device-plugin", "mps-control-daemon"} {
		files = append(files, cluster.File{Path: "bin/" + name, Source: filepath.Join(programs, name), Mode: 0o755})
	}
	root := b.release.Node.Root() // which has this path on every node
	return b.client.Cluster.ImportImage(ctx, cluster.Image{Ref: pluginImage, Files: files, Env: []string{
		"PATH=/bin:" + filepath.Join(root, "usr/bin"), "LD_LIBRARY_PATH=" + filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
	}})
}

// partition does what the MIG manager does on a node.
func (b *bed) partition(ctx context.Context, p *place) error {
	if _, err := p.gpus.Sim(ctx, "mig", "mode", "--gpu", "0", "on"); err != nil {
		return err
	}
	for _, profile := range made {
		if _, err := p.gpus.Sim(ctx, "mig", "create", "--gpu", "0", "--profile", profile); err != nil {
			return err
		}
	}
	// Device files of partitions appear when somebody asks for them.
	root := p.HostPath(p.gpus.Root())
	files, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/capabilities/gpu*/mig/gi*/access"))
	if err != nil {
		return err
	}
	instances, err := filepath.Glob(filepath.Join(root, "proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access"))
	if err != nil {
		return err
	}
	for _, file := range slices.Concat(files, instances) {
		file = strings.TrimPrefix(file, root)
		out, err := exec.CommandContext(ctx, filepath.Join(root, "usr/bin/nvidia-modprobe"), "-f", file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("make the device file of %s: %w: %s", file, err, out)
		}
	}
	return nil
}

// startPlugin starts the device plugin on all nodes.
func (b *bed) startPlugin(ctx context.Context) (err error) {
	guest := ""
	for _, p := range b.places {
		if guest, err = p.GuestDir("nvidia-mps"); err != nil {
			return err
		}
	}
	fill := func(file, config string) error {
		data, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			return err
		}
		text := strings.NewReplacer("$CONFIG", config, "$ROOT", b.release.Node.Root(), "$MPS", guest).
			Replace(string(data))
		_, err = b.client.Kubectl(ctx, text, "apply", "-f", "-")
		return err
	}
	if err := fill("operator.yaml", ""); err != nil {
		return err
	}
	if err := fill("mps-daemon.yaml", ""); err != nil {
		return err
	}
	for _, p := range b.places {
		if err := fill("device-plugin.yaml", p.config); err != nil {
			return err
		}
	}
	if err := b.client.WaitEstablished(ctx, "clusterpolicies.nvidia.com"); err != nil {
		return err
	}
	return fill("cluster-policy.yaml", "")
}

// values of a release that works in the cluster, besides what the documentation sets.
func (b *bed) values() string { return b.release.Values(release.Settings{}) }

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Log(diagnosis())
		t.Fatal(err)
	}
}

func diagnosis() string { return env.client.Diagnosis(operator, namespace, release.Namespace) }
