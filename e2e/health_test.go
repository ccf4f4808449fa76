// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/publish"
)

// fault injects faults for a GPU, which is given by the device that is the whole of it.
func (s *space) fault(ctx context.Context, device string, args ...string) {
	s.Helper()
	d := find(devicesOf(s.slices(ctx, env.cluster.NodeName())), device)
	if d == nil {
		s.Fatalf("device %s is not published", device)
	}
	_, err := env.node.Sim(ctx, append([]string{"fault", "--gpu", fmt.Sprint(*d.Attributes["index"].IntValue)}, args...)...)
	s.must(err)
}

// recoverAfter clears all faults should the test fail before it has done so, so that other tests have all GPUs.
func (s *space) recoverAfter(ctx context.Context) {
	s.Cleanup(func() {
		if !s.Failed() {
			return
		}
		ctx := context.WithoutCancel(ctx)
		_, err := env.node.Sim(ctx, "fault", "--clear")
		s.must(err)
		if env.node.Running() {
			s.must(env.node.Kill()) // and it forgets what only it knew
		}
		s.startPlugin(ctx)
	})
}

// unhealthy are the taints of devices of unhealthy GPUs, by device as "value:effect".
func (s *space) unhealthy(ctx context.Context) map[string]string {
	s.Helper()
	found := map[string]string{}
	for _, d := range devicesOf(s.slices(ctx, env.cluster.NodeName())) {
		for _, t := range d.Taints {
			if t.Key == publish.TaintUnhealthy {
				found[d.Name] += t.Value + ":" + string(t.Effect)
			}
		}
	}
	return found
}

// family are all devices of a GPU, which is given by the device that is the whole of it, with a taint.
func (s *space) family(ctx context.Context, device, taint string) map[string]string {
	s.Helper()
	all := map[string]string{}
	for _, d := range devicesOf(s.slices(ctx, env.cluster.NodeName())) {
		if d.Name == device || strings.HasPrefix(d.Name, device+"-") {
			all[d.Name] = taint
		}
	}
	if len(all) != 28 {
		s.Errorf("GPU %s is %d devices, want itself, two ways to share it and 25 partitions", device, len(all))
	}
	return all
}

// waitUnhealthy waits until just these devices have these taints.
func (s *space) waitUnhealthy(ctx context.Context, want map[string]string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("%d devices to have the taint of an unhealthy GPU", len(want)), func(ctx context.Context) (bool, string, error) {
		diff := cmp.Diff(want, s.unhealthy(ctx))
		return diff == "", diff, nil
	})
}

// heal clears the faults of GPUs as after a reset that the driver had wanted.
func (s *space) heal(ctx context.Context, devices ...string) {
	s.Helper()
	for _, d := range devices {
		s.fault(ctx, d, "--recovery", "1")
	}
	s.eventually(ctx, "the driver's wish for a reset to be known", func(ctx context.Context) (bool, string, error) {
		taints := s.unhealthy(ctx)
		for _, d := range devices {
			if !strings.HasPrefix(taints[d], "needs-reset:") {
				return false, fmt.Sprintf("%s has %q", d, taints[d]), nil
			}
		}
		return true, "", nil
	})
	for _, d := range devices {
		s.fault(ctx, d, "--clear")
	}
	s.waitUnhealthy(ctx, map[string]string{})
}

// waitHealth waits until a pod's status says of all its devices how they are, and returns what it says besides.
func (s *space) waitHealth(ctx context.Context, name string, want corev1.ResourceHealthStatus) string {
	s.Helper()
	var message string
	s.eventually(ctx, fmt.Sprintf("the status of pod %s to say %s", name, want), func(ctx context.Context) (bool, string, error) {
		pod, err := env.kube.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		devices, other := 0, 0
		for _, c := range pod.Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				for _, h := range r.Resources {
					devices++
					if h.Health != want {
						other++
					}
					if h.Message != nil {
						message = *h.Message
					}
				}
			}
		}
		return devices > 0 && other == 0, fmt.Sprintf("%+v", pod.Status.ContainerStatuses), nil
	})
	return message
}

// waitEvent waits for an Event of a reason on an object whose message has all parts.
func (s *space) waitEvent(ctx context.Context, namespace, object, reason string, parts ...string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("an Event %s on %s with %q", reason, object, parts), func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason + ",involvedObject.name=" + object})
		if err != nil {
			return false, "", err
		}
		var all []string
		for _, e := range list.Items {
			all = append(all, e.Message)
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e.Message, p) }) {
				return true, "", nil
			}
		}
		return false, strings.Join(all, "\n"), nil
	})
}

func TestHealth_TaintAndRecovery(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.recoverAfter(ctx)
	node := env.cluster.NodeName()
	s.create(ctx, gpuPod("holder", 1)...)
	holder := s.running(ctx, "holder")
	held := s.device(ctx, holder)
	s.waitHealth(ctx, "holder", corev1.ResourceHealthStatusHealthy)
	free := s.published(ctx)[0].Name // which the next claim would get
	if free == held {
		free = s.published(ctx)[1].Name
	}
	s.fault(ctx, held, "--xid", "79")
	s.fault(ctx, free, "--xid", "31") // a program's
	s.fault(ctx, free, "--xid", "74")
	want := s.family(ctx, held, "xid-79:NoSchedule")
	for d, taint := range s.family(ctx, free, "xid-74:NoSchedule") {
		want[d] = taint
	}
	s.waitUnhealthy(ctx, want)

	if got := s.waitHealth(ctx, "holder", corev1.ResourceHealthStatusUnhealthy); !strings.Contains(got, "XID 79") {
		t.Errorf("the pod's status says %q, want the XID", got)
	}
	s.waitEvent(ctx, s.name, ownClaim(holder), "GPUUnhealthy", held, "XID 79")
	s.waitEvent(ctx, "default", node, "GPUUnhealthy", held, "XID 79", s.name+"/"+ownClaim(holder))
	s.waitEvent(ctx, "default", node, "GPUUnhealthy", free, "XID 74")
	s.checkUndisturbed(ctx, holder)
	s.checkMetrics(ctx, map[string]string{
		fmt.Sprintf(`cleave_gpu_healthy{gpu=%q}`, held):                     "0",
		fmt.Sprintf(`cleave_xid_total{gpu=%q,xid="79"}`, held):              "1",
		fmt.Sprintf(`cleave_xid_total{gpu=%q,xid="31"}`, free):              "1",
		fmt.Sprintf(`cleave_gpu_healthy{gpu=%q}`, s.other(ctx, held, free)): "1",
	})

	s.create(ctx, gpuPod("others", gpus-2)...)
	if got := s.devices(ctx, s.running(ctx, "others")); slices.Contains(got, held) || slices.Contains(got, free) {
		t.Errorf("a pod got %v, and %s and %s are unhealthy", got, held, free)
	}
	s.create(ctx, gpuPod("waits", 1)...)
	s.unschedulable(ctx, "waits")
	s.create(ctx, claimPod("tolerates", tolerating(claimOf(1), resourceapi.DeviceTaintEffectNoSchedule))...)
	if got := s.device(ctx, s.running(ctx, "tolerates")); got != free {
		t.Errorf("a claim that tolerates the taint got %s, want %s", got, free)
	}
	s.delete(ctx, "tolerates")

	s.heal(ctx, held, free)
	if got := s.device(ctx, s.running(ctx, "waits")); got != free {
		t.Errorf("the pod that waited got %s, want %s", got, free)
	}
	s.waitHealth(ctx, "holder", corev1.ResourceHealthStatusHealthy)
	s.waitEvent(ctx, "default", node, "GPURecovered", held)
	s.waitEvent(ctx, s.name, ownClaim(holder), "GPURecovered", held)
	s.checkUndisturbed(ctx, holder)
}

// checkMetrics compares metrics of the plugin.
func (s *space) checkMetrics(ctx context.Context, want map[string]string) {
	s.Helper()
	metrics, err := env.node.Metrics(ctx)
	s.must(err)
	for name, value := range want {
		if metrics[name] != value {
			s.Errorf("metric %s is %q, want %s", name, metrics[name], value)
		}
	}
}

// other is a whole GPU that is none of these.
func (s *space) other(ctx context.Context, but ...string) string {
	s.Helper()
	for _, d := range s.published(ctx) {
		if !slices.Contains(but, d.Name) {
			return d.Name
		}
	}
	s.Fatal("there is no other GPU")
	return ""
}

// tolerating makes a claim tolerate unhealthy GPUs.
func tolerating(spec resourceapi.ResourceClaimSpec, effects ...resourceapi.DeviceTaintEffect) resourceapi.ResourceClaimSpec {
	for _, effect := range effects {
		exactly := spec.Devices.Requests[0].Exactly
		exactly.Tolerations = append(exactly.Tolerations, resourceapi.DeviceToleration{
			Key: publish.TaintUnhealthy, Operator: resourceapi.DeviceTolerationOpExists, Effect: effect,
		})
	}
	return spec
}

func TestHealth_UnhealthyPartition(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.recoverAfter(ctx)
	s.create(ctx, partitionPod("sick", smallClass)...)
	sick := s.device(ctx, s.running(ctx, "sick")) // the topmost place of GPU 0
	s.create(ctx, partitionPod("sound", smallClass)...)
	s.running(ctx, "sound")
	gpu, _, _ := strings.Cut(sick, "-mig-")
	gi := s.instance(ctx, strings.TrimPrefix(sick, gpu+"-mig-19-")+":1")
	s.fault(ctx, gpu, "--xid", "94", "--gi", gi)
	want := map[string]string{}
	for _, name := range []string{"", "-timeslice", "-mps", "-mig-19-6", "-mig-20-6", "-mig-15-6", "-mig-9-4", "-mig-0-0"} {
		want[gpu+name] = "xid-94:NoSchedule"
	}
	s.waitUnhealthy(ctx, want)
	s.waitHealth(ctx, "sick", corev1.ResourceHealthStatusUnhealthy)
	s.waitHealth(ctx, "sound", corev1.ResourceHealthStatusHealthy)
	s.delete(ctx, "sick")
	s.create(ctx, partitionPod("next", smallClass)...)
	if got := s.device(ctx, s.running(ctx, "next")); got == sick || !strings.HasPrefix(got, gpu+"-mig-19-") {
		t.Errorf("the next partition is %s, want one of GPU %s that is not %s", got, gpu, sick)
	}
	s.waitUnhealthy(ctx, map[string]string{}) // the driver wants nothing, and it does not come again
}

// instance is the ID of the GPU instance at a placement of GPU 0.
func (s *space) instance(ctx context.Context, placement string) string {
	s.Helper()
	out, err := env.node.Sim(ctx, "mig", "list")
	s.must(err)
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 6 && fields[0] == "0" && fields[4] == placement {
			return fields[1]
		}
	}
	s.Fatalf("there is no GPU instance at %s:\n%s", placement, out)
	return ""
}

// A plugin that starts knows what drivers want before it publishes anything: taints never go in between.
func TestHealth_TaintsOutlivePlugin(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.recoverAfter(ctx)
	gpu := s.published(ctx)[0].Name
	s.fault(ctx, gpu, "--recovery", "2")
	want := s.family(ctx, gpu, "needs-reboot:NoSchedule")
	s.waitUnhealthy(ctx, want)
	added := s.added(ctx, gpu)
	s.must(env.node.Kill())
	s.startPlugin(ctx)
	s.waitUnhealthy(ctx, want)
	if got := s.added(ctx, gpu); got != added {
		t.Errorf("the taint is there since %s, want %s: it was away for a while", got, added)
	}
	s.heal(ctx, gpu)
}

// added is since when a device has the taint of an unhealthy GPU.
func (s *space) added(ctx context.Context, device string) string {
	s.Helper()
	d := find(devicesOf(s.slices(ctx, env.cluster.NodeName())), device)
	for _, t := range d.Taints {
		if t.Key == publish.TaintUnhealthy && t.TimeAdded != nil {
			return t.TimeAdded.String()
		}
	}
	s.Fatalf("device %s has no taint with a time: %+v", device, d.Taints)
	return ""
}

func TestHealth_LostGPUEvictsPods(t *testing.T) {
	ctx, s := newSpace(t, nil)
	s.recoverAfter(ctx)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	policy := "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n  - health: {reaction: %s}\n"
	s.must(os.WriteFile(path, fmt.Appendf(nil, policy, "NoExecute"), 0o600))
	s.must(env.node.Kill())
	env.node.SetFlags("--policy", path)
	t.Cleanup(func() {
		env.node.SetFlags()
		s.must(env.node.Kill())
		s.startPlugin(context.WithoutCancel(ctx))
	})
	s.startPlugin(ctx)
	s.create(ctx, gpuPod("evicted", 1)...)
	gone := s.device(ctx, s.running(ctx, "evicted"))
	s.create(ctx, claimPod("stays", tolerating(claimOf(1), resourceapi.DeviceTaintEffectNoExecute))...)
	stays := s.running(ctx, "stays")
	s.create(ctx, gpuPod("elsewhere", 1)...)
	elsewhere := s.running(ctx, "elsewhere")
	held := s.device(ctx, stays)
	s.fault(ctx, gone, "--xid", "79", "--lost")
	s.fault(ctx, held, "--xid", "79", "--lost")
	s.gone(ctx, "evicted")
	want := s.family(ctx, gone, "gpu-lost:NoExecute")
	for d, taint := range s.family(ctx, held, "gpu-lost:NoExecute") {
		want[d] = taint
	}
	s.waitUnhealthy(ctx, want)
	s.waitHealth(ctx, "stays", corev1.ResourceHealthStatusUnhealthy)
	s.checkUndisturbed(ctx, stays)
	s.checkUndisturbed(ctx, elsewhere)
	s.waitRecords(ctx, env.node, ownClaim(stays), ownClaim(elsewhere)) // giving a lost GPU back asks nothing of it

	// Another reaction holds at once for the taints that are there.
	s.must(os.WriteFile(path, fmt.Appendf(nil, policy, "None"), 0o600))
	for d := range want {
		want[d] = "gpu-lost:None"
	}
	s.waitUnhealthy(ctx, want)
	_, err := env.node.Sim(ctx, "fault", "--clear")
	s.must(err)
	s.waitUnhealthy(ctx, map[string]string{})
	s.create(ctx, gpuPod("again", gpus-2)...)
	if got := s.devices(ctx, s.running(ctx, "again")); !slices.Contains(got, gone) {
		t.Errorf("all free GPUs are %v, want %s among them, which is back", got, gone)
	}
}
