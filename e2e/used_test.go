// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// burn is what a pod's own process does with its device.
type burn struct {
	objects []runtime.Object
	script  string
	// sm, dram and memory are what is seen of it.
	sm, dram float64
	memory   int64
	// source is where the figures of activity come from.
	source string
}

// TestUsed_Tiers: what claims of all tiers use, by the plugin's metrics and by cleave advise, is what their processes do by a script,
// within a tenth, and one that does nothing is idle.
func TestUsed_Tiers(t *testing.T) {
	needPodGroups(t)
	ctx, s := newSpace(t)
	s.plugin.restart(ctx, "--usage-every=1s")
	atEnd(t, func(ctx context.Context) { s.plugin.restart(ctx) })
	burns := map[string]burn{
		"whole":   {gpuPod("whole", 1), "sm 40, dram 20, memory 6Gi for 10s", 0.4, 0.2, 6 << 30, "gpm"},
		"part":    {partitionPod("part", smallClass), "sm 60, dram 30, memory 2Gi", 0.6, 0.3, 2 << 30, "gpm"},
		"slice-1": {claimPod("slice-1", shareSpec(timeSliceClass)), "sm 30, dram 10, memory 3Gi", 0.3, 0.1, 3 << 30, "process"},
		"slice-2": {claimPod("slice-2", shareSpec(timeSliceClass)), "idle, memory 1Gi", 0, 0, 1 << 30, "process"},
		"mps":     {claimPod("mps", shareSpec(mpsClass)), "sm 50, dram 25, memory 4Gi", 0.5, 0.25, 4 << 30, "process"},
	}
	for _, name := range slices.Sorted(maps.Keys(burns)) {
		b := burns[name]
		workload.RunBurn(podOf(b.objects), env.node.Root(), b.script)
		s.pods.run(ctx, b.objects)
	}
	for _, name := range slices.Sorted(maps.Keys(burns)) {
		b := burns[name]
		s.plugin.waitFigure(ctx, name, "memory_used_bytes", "process", float64(b.memory))
		s.plugin.waitFigure(ctx, name, "sm_active_ratio", b.source, b.sm)
		s.plugin.waitFigure(ctx, name, "dram_active_ratio", b.source, b.dram)
	}
	s.eventually(ctx, "slice-2 to be idle, and slice-1 active", func(ctx context.Context) (bool, string, error) {
		all, err := env.node.Metrics(ctx)
		if err != nil {
			return false, "", err
		}
		idle, active := figureOf(all, "slice-2", "last_active_timestamp_seconds", "process"), figureOf(all, "slice-1", "last_active_timestamp_seconds", "process")
		return active > idle+2, fmt.Sprintf("last active %f and %f", idle, active), nil
	})
	// What has ended uses nothing until it is begun again, and what it used at most is still known. A claim that is gone has no figures.
	s.plugin.pluginPod(ctx)
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
