// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// migConfigLabel is the label of NVIDIA's MIG manager, by which runbooks choose a mig-config.
const migConfigLabel = "nvidia.com/mig.config"

// modeNode is a DGX A100 with policies for training, whole, and inference, of which GPUs 0 and 1 are partitioned. Its device nodes
// have numbers of their own: who has a GPU open is found by them.
func (s *space) modeNode(ctx context.Context, firstMinor string) *plainNode {
	s.Helper()
	dir := s.TempDir()
	s.plugin.writePolicy(dir, "training", "[{tiers: [exclusive], mig: {modeChange: whenIdle}}]")
	s.plugin.writePolicy(dir, "inference", "[{match: {indexes: [0, 1]}, mig: {layout: {1g.10gb: 3, 4g.40gb: 1}, modeChange: whenIdle}}, {tiers: [exclusive]}]")
	n := s.newPlainNode(ctx, func(o *corev1.Node) { o.Labels = map[string]string{v1alpha1.PolicyLabel: "training"} }, "--policy", dir)
	n.sim(ctx, "create", "--node", "dgx-a100", "--first-minor", firstMinor)
	for i := range 8 {
		n.smi(ctx, "-i", fmt.Sprint(i), "-pm", "1")
	}
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 8)
	return n
}

func (n *plainNode) label(ctx context.Context, key, value string) {
	n.space.Helper()
	n.space.must(env.client.LabelNode(ctx, n.name, key, &value))
}

// hold keeps a GPU open, as a monitoring agent does, until end is called.
func (n *plainNode) hold(ctx context.Context, gpu int) (pid int, end func()) {
	return holdOpen(ctx, n.space, n.Root(), "--gpu", fmt.Sprint(gpu))
}

// holdOpen keeps what flags of nvml-sim hold say open until end is called, which can be repeated.
func holdOpen(ctx context.Context, s *space, root string, flags ...string) (pid int, end func()) {
	s.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(programsDir, "nvml-sim"), append([]string{"hold", "--root", root}, flags...)...)
	out, err := cmd.StdoutPipe()
	s.must(err)
	s.must(cmd.Start())
	_, err = out.Read(make([]byte, 16))
	s.must(err)
	return cmd.Process.Pid, sync.OnceFunc(func() {
		s.must(cmd.Process.Signal(syscall.SIGTERM))
		s.must(cmd.Wait())
	})
}

const (
	allWhole = "gpu=8"
	cutTwo   = "gpu=6 mig=8"
)

// The label changes what two of eight A100s are: a claim of another GPU is not disturbed, a claim of one of them ends in its own
// time, an agent that has a GPU open is named and not ended, and persistence mode is as it was.
func TestMIGMode_ByPolicy(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.modeNode(ctx, "8")
	names := map[string]string{}
	for _, name := range n.deviceNames(ctx) {
		names[n.index(ctx, name)] = name
	}
	other := s.allocate(ctx, "other", workload.OneGPU(n.name, names["3"], false))
	n.prepared(ctx, other, 1)
	mine := s.allocate(ctx, "mine", workload.OneGPU(n.name, names["0"], false))
	n.prepared(ctx, mine, 1)
	pid, end := n.hold(ctx, 1)

	n.label(ctx, v1alpha1.PolicyLabel, "inference")
	s.events.waitOnNode(ctx, n.name, corev1.EventTypeNormal, "MIGModePending", s.name+"/mine")
	s.events.waitOnNode(ctx, n.name, corev1.EventTypeWarning, "MIGModeNotChanged", fmt.Sprintf("open in nvml-sim (process %d)", pid))
	end()
	s.events.waitOnNode(ctx, n.name, corev1.EventTypeNormal, "MIGModeChanged", "is in MIG mode now")
	s.published.waitOffer(ctx, n.name, "gpu!=1 gpu=6 mig=4")
	s.must(n.Unprepare(ctx, mine))
	s.must(env.kube.ResourceV1().ResourceClaims(s.name).Delete(ctx, "mine", metav1.DeleteOptions{}))
	s.published.waitOffer(ctx, n.name, cutTwo)
	s.eventually(ctx, "the layout on the boards", func(ctx context.Context) (bool, string, error) {
		out, _ := n.smi(ctx, "mig", "-lgi")
		return strings.Count(out, "MIG 4g.40gb") == 2 && strings.Count(out, "MIG 1g.10gb") == 6, out, nil
	})
	if out, _ := n.smi(ctx, "--query-gpu=mig.mode.current,mig.mode.pending,persistence_mode", "--format=csv,noheader", "-i", "0,1,2"); out !=
		"Enabled, Enabled, Enabled\nEnabled, Enabled, Enabled\nDisabled, Disabled, Enabled\n" {
		t.Errorf("nvidia-smi reports\n%s", out)
	}
	n.prepared(ctx, other, 1) // the same answer

	n.label(ctx, v1alpha1.PolicyLabel, "training")
	s.published.waitOffer(ctx, n.name, allWhole)
	s.must(n.Unprepare(ctx, other))
}

// A plugin that is killed while a GPU is reset leaves it in one mode, and the next one finishes the change.
func TestMIGMode_KilledPlugin(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.modeNode(ctx, "16")
	n.sim(ctx, "fault", "--slow", "3s", "gpuReset")
	for _, to := range []struct{ policy, offer string }{{"inference", cutTwo}, {"training", allWhole}} {
		n.label(ctx, v1alpha1.PolicyLabel, to.policy)
		s.eventually(ctx, "a change that has begun", func(ctx context.Context) (bool, string, error) {
			found, err := filepath.Glob(filepath.Join(n.PluginsDir(), records.SharedDir, records.ModesDir, "gpu-*.json"))
			return len(found) > 0, fmt.Sprint(found), err
		})
		s.must(n.Kill())
		s.must(n.Start(ctx))
		s.published.waitOffer(ctx, n.name, to.offer)
	}
	s.eventually(ctx, "no record of a change to be left", func(context.Context) (bool, string, error) {
		found, err := filepath.Glob(filepath.Join(n.PluginsDir(), records.SharedDir, records.ModesDir, "gpu-*.json"))
		return len(found) == 0, fmt.Sprint(found), err
	})
}

// A node of a course with four A100s of 80 GB: the MIG manager's label chooses the layout, and pods with extended resources run
// unchanged after "cleave import" of the course's files.
func TestMIGMode_ImportedCourse(t *testing.T) {
	ctx, s := newSpace(t)
	s.noOtherClasses(ctx)
	s.must(env.node.Stop())
	atEnd(s.T, s.hardware.resetDriver)
	s.hardware.sim(ctx, "create", "--node", "a100-pcie-nvlink-pairs", "--force")
	dir := s.TempDir()
	s.imports(ctx, "mig-parted", "course-mig-parted.yaml", dir)
	out, err := exec.CommandContext(ctx, filepath.Join(programsDir, "cleave"), "import", "device-plugin", // whose classes are among those
		filepath.Join(manifests, "course-device-plugin.yaml"), "--output-dir", s.TempDir()).CombinedOutput()
	if err != nil {
		t.Fatalf("cleave import device-plugin: %v: %s", err, out)
	}
	label := "all-1g.10gb"
	s.plugin.labelNode(ctx, migConfigLabel, &label)
	env.node.SetFlags("--policy", dir, "--policy-labels", v1alpha1.PolicyLabel+","+migConfigLabel)
	atEnd(s.T, func(ctx context.Context) {
		env.node.SetFlags()
		s.plugin.labelNode(ctx, migConfigLabel, nil)
	})
	s.plugin.start(ctx)
	name := env.cluster.NodeName()
	for _, step := range []struct{ config, offer, resource string }{
		{"all-1g.10gb", "mig=28", "mig-1g.10gb"},
		{"all-balanced", "mig=16", "mig-3g.40gb"},
		{"mixed-workload", "gpu=1 mig=12", "gpu"},
		{"mixed-workload", "gpu=1 mig=12", "mig-2g.20gb"},
		{"all-disabled", "gpu=4", "gpu"},
	} {
		s.plugin.labelNode(ctx, migConfigLabel, &step.config)
		s.published.waitOffer(ctx, name, step.offer)
		objects, err := workload.Load(filepath.Join(manifests, "pod-"+strings.ReplaceAll(step.resource, ".", "-")+".yaml"))
		s.must(err)
		s.create(ctx, objects...)
		pod := s.pods.running(ctx, podOf(objects).Name)
		s.pods.checkSees(ctx, pod, s.pods.devices(ctx, pod))
		s.pods.delete(ctx, pod.Name)
	}
}
