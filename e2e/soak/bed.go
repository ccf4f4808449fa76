// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/history/tap"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

const (
	model     = "hgx-h100"
	modelGPUs = 8
	// namespace of the pods.
	namespace = "soak"
	// stateSize is the size of the file system of the plugin's directory, which is one of its own to be filled.
	stateSize = "size=4m"
	// downTimeout bounds the clean-up.
	downTimeout = 2 * time.Minute
)

// bed is a cluster with Cleave's release on a simulated node.
type bed struct {
	*release.Bed
	cluster *cluster.Cluster
	client  workload.Client
	kube    kubernetes.Interface
	source  string
	// api is between the plugin and the API server.
	api     *release.Forwarder
	cgroups string
	// tap is between the plugin, which registers in a directory of its own, and the kubelet.
	tap      *tap.Tap
	registry string
	// scheduler is cleave-scheduler, and owner the controller of all pods.
	scheduler *scheduler
	owner     metav1.OwnerReference
}

// setUp starts the cluster and installs the release. tearDown is to follow, whether or not it fails.
func setUp(ctx context.Context, opts Options) (*bed, error) {
	client, err := workload.Up(ctx, cluster.Options{Source: opts.Source, Dir: opts.Dir, Output: opts.Output,
		NodeLabels: map[string]string{release.NodeLabel: "true"}, FeatureGates: gates(), RuntimeConfig: []string{groupAPI}})
	if err != nil {
		return nil, err
	}
	b := &bed{cluster: client.Cluster, client: client, kube: client.Kube, source: opts.Source, cgroups: release.Cgroups()}
	if err := b.mountState(); err != nil {
		return b, err
	}
	if b.Bed, err = release.Prepare(ctx, b.cluster, opts.Source, model); err != nil {
		return b, err
	}
	b.api, err = release.Forward(ctx, cluster.PodGateway, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cluster.APIServerPort())))
	if err != nil {
		return b, err
	}
	if err := b.startTap(ctx); err != nil {
		return b, err
	}
	if _, err := b.Helm(ctx, b.values(), "install", "cleave", release.Chart(b.source), "--create-namespace"); err != nil {
		return b, err
	}
	admin := map[string]string{"resource.kubernetes.io/admin-access": "true"}
	objects := append([]runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: admin}}}, templates()...)
	if err := createClasses(ctx, b.kube); err != nil {
		return b, err
	}
	if err := workload.Create(ctx, b.kube, namespace, objects); err != nil {
		return b, err
	}
	if b.owner, err = createOwner(ctx, b.kube); err != nil {
		return b, err
	}
	b.scheduler, err = startScheduler(ctx, b, opts)
	return b, err
}

// stateDir is where the plugin keeps its records.
func (b *bed) stateDir() string { return filepath.Join(b.cluster.PluginsDir(), records.SharedDir) }

func (b *bed) mountState() error {
	if err := os.MkdirAll(b.stateDir(), 0o750); err != nil {
		return fmt.Errorf("create the plugin's directory: %w", err)
	}
	if err := syscall.Mount("tmpfs", b.stateDir(), "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, stateSize); err != nil {
		return fmt.Errorf("mount a file system to be filled on %s: %w", b.stateDir(), err)
	}
	return nil
}

func (b *bed) values() string {
	return b.Values(release.Settings{APIHost: cluster.PodGateway, APIPort: b.api.Port, Cgroups: b.cgroups, RegistryDir: b.registry}) +
		fmt.Sprintf("policies:\n  default: {rules: %s}\n  other: {rules: %s}\n", policy, otherPolicy)
}

// tearDown takes all down and reports what is left of it.
func (b *bed) tearDown(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	if b != nil && b.api != nil {
		b.api.Stop()
	}
	if b != nil && b.tap != nil {
		b.tap.Close()
	}
	err := cluster.Down(ctx, dir)
	if b != nil {
		err = errors.Join(err, b.scheduler.stop())
	}
	if b == nil || b.cgroups == "" {
		return err
	}
	return errors.Join(err, removeServerGroups(ctx, b.cgroups))
}

// serverGroups are the cgroups of MPS servers.
const serverGroups = "cleave-mps"

// removeServerGroups removes them once their processes have ended.
func removeServerGroups(ctx context.Context, cgroups string) error {
	parent := filepath.Join(cgroups, serverGroups)
	return workload.Until(ctx, "the cgroups of MPS servers to go", func(context.Context) (bool, string, error) {
		entries, err := os.ReadDir(parent)
		if errors.Is(err, fs.ErrNotExist) {
			return true, "", nil
		}
		for _, e := range entries {
			if e.IsDir() {
				err = errors.Join(err, os.Remove(filepath.Join(parent, e.Name())))
			}
		}
		err = errors.Join(err, os.Remove(parent))
		return err == nil, fmt.Sprint(err), nil
	})
}

// label sets a label of the node, or removes it for "".
func (b *bed) label(ctx context.Context, key, value string) error {
	if value == "" {
		return b.client.LabelNode(ctx, b.cluster.NodeName(), key, nil)
	}
	return b.client.LabelNode(ctx, b.cluster.NodeName(), key, &value)
}

// Labels of the node that faults set.
const (
	policyLabel  = v1alpha1.PolicyLabel
	releaseLabel = v1alpha1.ReleaseDriverLabel
)

// programs of Cleave's that run on the node.
type program int

const (
	pluginProgram program = iota
	supervisorProgram
	daemonProgram
)

func (p program) String() string {
	return [...]string{"the plugin", "the MPS supervisor", "MPS daemons"}[p]
}

// running are the processes of a program of this release, those in containers too.
func (b *bed) running(p program) ([]process.Process, error) {
	all, err := process.List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(q process.Process) bool { return !b.is(p, q) }), nil
}

func (b *bed) is(p program, q process.Process) bool {
	switch p {
	case pluginProgram:
		return strings.HasPrefix(q.Command, "/usr/bin/cleave-node kubelet-plugin ") &&
			strings.Contains("\x00"+q.Environment, "\x00KUBERNETES_SERVICE_PORT="+b.api.Port+"\x00")
	case supervisorProgram:
		return strings.HasPrefix(q.Command, "/usr/bin/cleave-node mps-supervisor --dir="+b.MPSDir+" ")
	default:
		return strings.Contains(q.Command, "nvidia-cuda-mps") && strings.Contains(q.Environment, "="+b.MPSDir)
	}
}
