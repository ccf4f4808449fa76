// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// burn is what a pod's process does with its device.
type burn struct {
	objects  []runtime.Object
	sm, dram int // percent
	memory   int64
	// source is where the figures of activity come from.
	source string
}

// TestUsed_Tiers: what claims of all tiers use, by the plugin's metrics and by cleave advise, is what their processes were told to do,
// within a tenth, and one that does nothing is idle.
func TestUsed_Tiers(t *testing.T) {
	needPodGroups(t)
	ctx, s := newSpace(t, nil)
	s.plugin.restart(ctx, "--usage-every=1s")
	atEnd(t, func(ctx context.Context) { s.plugin.restart(ctx) })
	burns := map[string]burn{
		"whole":   {gpuPod("whole", 1), 40, 20, 6 << 30, "gpm"},
		"part":    {partitionPod("part", smallClass), 60, 30, 2 << 30, "gpm"},
		"slice-1": {claimPod("slice-1", shareSpec(timeSliceClass)), 30, 10, 3 << 30, "process"},
		"slice-2": {claimPod("slice-2", shareSpec(timeSliceClass)), 0, 0, 1 << 30, "process"},
		"mps":     {claimPod("mps", shareSpec(mpsClass)), 50, 25, 4 << 30, "process"},
	}
	ends := map[string]func(){}
	for _, name := range slices.Sorted(maps.Keys(burns)) {
		b := burns[name]
		pod := s.pods.run(ctx, b.objects)
		client := []string{"--gpu", s.hardware.indexOf(ctx, s.pods.device(ctx, pod)), "--pid", strconv.Itoa(pidOf(s, pod))}
		leave := sync.OnceFunc(func() { s.hardware.sim(context.WithoutCancel(ctx), append([]string{"client", "remove"}, client...)...) })
		defer leave() // before its pod ends: a client that was declared stays
		ends[name] = leave
		args := append([]string{"load", "--sm", strconv.Itoa(b.sm), "--dram", strconv.Itoa(b.dram), "--memory", fmt.Sprintf("%dMi", b.memory>>20)}, client...)
		if name == "part" {
			partitions, err := env.node.Partitions(ctx)
			s.must(err)
			args = append(args, "--gi", partitions[0].GPUInstance, "--ci", partitions[0].ComputeInstance)
		}
		s.hardware.sim(ctx, args...)
	}
	for _, name := range slices.Sorted(maps.Keys(burns)) {
		b := burns[name]
		s.plugin.waitFigure(ctx, name, "memory_used_bytes", "process", float64(b.memory))
		s.plugin.waitFigure(ctx, name, "sm_active_ratio", b.source, float64(b.sm)/100)
		s.plugin.waitFigure(ctx, name, "dram_active_ratio", b.source, float64(b.dram)/100)
	}
	s.eventually(ctx, "slice-2 to be idle, and slice-1 active", func(ctx context.Context) (bool, string, error) {
		all, err := env.node.Metrics(ctx)
		if err != nil {
			return false, "", err
		}
		idle, active := figureOf(all, "slice-2", "last_active_timestamp_seconds", "process"), figureOf(all, "slice-1", "last_active_timestamp_seconds", "process")
		return active > idle+2, fmt.Sprintf("last active %f and %f", idle, active), nil
	})
	// What has ended uses nothing, and what it used at most is still known. A claim that is gone has no figures.
	s.plugin.pluginPod(ctx)
	ends["whole"]()
	s.plugin.waitFigure(ctx, "whole", "memory_used_bytes", "process", 0)
	s.plugin.checkAdvice(ctx, burns)
	s.pods.delete(ctx, "whole")
	s.eventually(ctx, "the figures of a pod that is gone to go", func(ctx context.Context) (bool, string, error) {
		all, err := env.node.Metrics(ctx)
		for name := range all {
			if strings.HasPrefix(name, "cleave_claim_") && strings.Contains(name, `pod="whole"`) {
				return false, name, err
			}
		}
		return err == nil, "", err
	})
	s.must(env.node.Stop())
	if advice, stderr := s.plugin.advise(ctx); advice != nil || !strings.Contains(stderr, "plugin: ") || !strings.Contains(stderr, "pods/portforward") {
		t.Errorf("with a plugin that does not answer: got %+v, %s", advice, stderr)
	}
	s.plugin.start(ctx)
}

// waitFigure waits until a figure of a pod's claim is within a tenth of what it is to be.
func (s plugin) waitFigure(ctx context.Context, pod, figure, source string, want float64) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("%s of %s to be %g", figure, pod, want), func(ctx context.Context) (bool, string, error) {
		all, err := env.node.Metrics(ctx)
		got := figureOf(all, pod, figure, source)
		return err == nil && math.Abs(got-want) <= want/10, fmt.Sprint(got), err
	})
}

// figureOf is a figure of a pod's claim; NaN if there is none.
func figureOf(all map[string]string, pod, figure, source string) float64 {
	for name, value := range all {
		if strings.HasPrefix(name, "cleave_claim_"+figure+"{") && strings.Contains(name, fmt.Sprintf("pod=%q", pod)) &&
			strings.Contains(name, fmt.Sprintf("source=%q", source)) {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				return v
			}
		}
	}
	return math.NaN()
}

// indexOf is the index of a device's GPU.
func (s hardware) indexOf(ctx context.Context, device string) string {
	s.Helper()
	address, _, _ := strings.Cut(strings.TrimPrefix(device, "gpu-"), "-mig")
	d := find(s.published.devices(ctx, env.cluster.NodeName()), "gpu-"+strings.Join(strings.Split(address, "-")[:4], "-"))
	if d == nil {
		s.Fatalf("the GPU of device %s is not published", device)
	}
	return fmt.Sprint(*d.Attributes["index"].IntValue)
}

// pidOf is the process of a pod's container, by its control group.
func pidOf(s *space, pod *corev1.Pod) int {
	s.Helper()
	current, err := env.kube.CoreV1().Pods(s.name).Get(s.Context(), pod.Name, metav1.GetOptions{})
	s.must(err)
	_, id, _ := strings.Cut(current.Status.ContainerStatuses[0].ContainerID, "://")
	for _, p := range processes() {
		if groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.PID)); err == nil && strings.Contains(string(groups), id) {
			return p.PID
		}
	}
	s.Fatalf("no process is in the control group of pod %s", pod.Name)
	return 0
}
