// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/golden"
)

// now is when plugins are asked.
var now = start.Add(100 * time.Hour)

// looked are the metrics of a claim: GiB, activity, hours that they were known, and hours since the first look. Negative ones are absent.
func looked(claim, device string, memory, active, known, since float64) string {
	var b strings.Builder
	labels := fmt.Sprintf(`{UUID="GPU-1",GPU_I_ID="",namespace="ml",pod="",dra_claim_name=%q,dra_device_name=%q}`, claim, device)
	line := func(name string, value float64) { fmt.Fprintf(&b, "cleave_claim_%s%s %g\n", name, labels, value) }
	if memory >= 0 {
		line("memory_used_max_bytes", memory*gibibyte)
	}
	if active >= 0 {
		line("sm_active_max_ratio", active)
	}
	line("memory_seen_seconds_total", known*3600)
	line("sm_seen_seconds_total", known*3600)
	line("first_look_timestamp_seconds", float64(now.Add(-time.Duration(since*float64(time.Hour))).Unix()))
	return b.String()
}

// header begins the metrics of a plugin.
const header = `# TYPE cleave_claim_memory_used_max_bytes gauge
# TYPE cleave_claim_sm_active_max_ratio gauge
# TYPE cleave_claim_memory_seen_seconds_total counter
# TYPE cleave_claim_sm_seen_seconds_total counter
# TYPE cleave_claim_first_look_timestamp_seconds gauge
`

// plugins are those of nodes: their metrics, or an error that begins with "!".
func plugins(of map[string]string) *Plugins {
	p := &Plugins{Driver: v1alpha1.Group, Get: func(_ context.Context, namespace, pod string, port int32, path string) ([]byte, error) {
		if namespace != "cleave-system" || port != 8080 || path != "/metrics" {
			return nil, fmt.Errorf("got %s %d %s", namespace, port, path)
		}
		page := of[pod]
		if why, failed := strings.CutPrefix(page, "!"); failed {
			return nil, errors.New(why)
		}
		return []byte(header + page), nil
	}}
	for name := range of {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "cleave-system", Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		pod.Spec.NodeName, _, _ = strings.Cut(name, "/")
		pod.Spec.Containers = []corev1.Container{{Args: []string{"kubelet-plugin"}, Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}}}
		p.Pods = append(p.Pods, pod)
	}
	return p
}

func TestPlugins_Read(t *testing.T) {
	seen := func(memory, active, known, since float64) Most {
		long := time.Duration(known * float64(time.Hour))
		m := Most{Since: now.Add(-time.Duration(since * float64(time.Hour))), Looked: time.Duration(since * float64(time.Hour)), MemoryFor: long, ActivityFor: long}
		if memory *= gibibyte; memory >= 0 {
			m.Memory = &memory
		}
		if active >= 0 {
			m.Activity = &active
		}
		return m
	}
	key := Key{"ml", "web-1", gpu1}
	for name, tt := range map[string]struct {
		pods     map[string]string
		other    string // pool of a second claim
		want     map[Key][]Most
		warnings []string
		says     string
	}{
		"figures":           {pods: map[string]string{"n1": looked("web-1", gpu1, 5, .05, 30, 40)}, want: map[Key][]Most{key: {seen(5, .05, 30, 40)}}},
		"some are absent":   {pods: map[string]string{"n1": looked("web-1", gpu1, -1, -1, 0, 40)}, want: map[Key][]Most{key: {seen(-1, -1, 0, 40)}}},
		"a second plugin":   {pods: map[string]string{"n1/a": "!refused", "n1/b": looked("web-1", gpu1, 5, .05, 30, 40)}, want: map[Key][]Most{key: {seen(5, .05, 30, 40)}}},
		"of no other node":  {pods: map[string]string{"n1": looked("web-1", gpu1, 5, .05, 30, 40), "n9": "!asked"}, want: map[Key][]Most{key: {seen(5, .05, 30, 40)}}},
		"an earlier plugin": {pods: map[string]string{"n1": "cleave_gpus 8\n"}, want: map[Key][]Most{}, warnings: []string{"the plugin on node n1 has not looked at claims"}},
		"one of two": {pods: map[string]string{"n1": looked("web-1", gpu1, 5, .05, 30, 40), "n2": "!refused"}, other: "n2",
			want: map[Key][]Most{key: {seen(5, .05, 30, 40)}}, warnings: []string{"what claims on node n2 use is not known: refused"}},
		"no pod": {pods: map[string]string{"n1": looked("web-1", gpu1, 5, .05, 30, 40)}, other: "n2",
			want: map[Key][]Most{key: {seen(5, .05, 30, 40)}}, warnings: []string{"on node n2 use is not known: no plugin of the namespace runs there"}},
		"none can be read": {pods: map[string]string{"n1": "!refused"}, other: "n2", says: "from the plugins of 2 nodes what claims use: node n1: refused"},
		"no metrics":       {pods: map[string]string{"n1": "<html>"}, says: "read the metrics of pod n1"},
		"no numbers": {pods: map[string]string{"n1": looked("web-1", gpu1, 5, .05, 30, 40) + "cleave_claim_memory_used_max_bytes{dra_claim_name=\"x\"} NaN\n"},
			want: map[Key][]Most{key: {seen(5, .05, 30, 40)}, {Claim: "x"}: {Most{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.claim("web-1", gpu1)
			b.claims[0].Status.Allocation.Devices.Results[0].Pool = "n1"
			if tt.other != "" {
				b.claim("web-2", gpu2).Status.Allocation.Devices.Results[0].Pool = tt.other
			}
			f, err := plugins(tt.pods).Read(t.Context(), now, b.claims)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %v, want an error that says %q", err, tt.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, f.Most, cmpopts.EquateApproxTime(0)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(f.Warnings) != len(tt.warnings) {
				t.Fatalf("warnings %q, want %q", f.Warnings, tt.warnings)
			}
			for i, want := range tt.warnings {
				if !strings.Contains(f.Warnings[i], want) {
					t.Errorf("warning %q, want %q", f.Warnings[i], want)
				}
			}
		})
	}
	if f, err := plugins(nil).Read(t.Context(), now, nil); err != nil || f.source() != FromPlugins {
		t.Errorf("without claims: got %+v, %v", f, err)
	}
}

// A few plugins are read at a time, and none is waited for for long.
func TestPlugins_AtOnce(t *testing.T) {
	b, of := newBed(t), map[string]string{}
	for i := range 3 * atOnce {
		node := fmt.Sprintf("n%02d", i)
		of[node] = ""
		b.claim("web-"+node, gpu1).Status.Allocation.Devices.Results[0].Pool = node
	}
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int32
		p, began, done := plugins(of), time.Now(), make(chan error, 1)
		p.Get = func(ctx context.Context, _, _ string, _ int32, _ string) ([]byte, error) {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		go func() {
			_, err := p.Read(t.Context(), now, b.claims)
			done <- err
		}()
		synctest.Wait()
		if n := running.Load(); n != atOnce {
			t.Errorf("%d plugins are read at once, want %d", n, atOnce)
		}
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*readTimeout {
			t.Errorf("got %v after %s, want an error after %s", err, time.Since(began), 3*readTimeout)
		}
	})
}

// pluginsBed is a bed with claims of several workloads, of which plugins have seen the most.
func pluginsBed(t *testing.T) *bed {
	b := newBed(t)
	own := func(name, workload, device string) {
		b.claim(name, device)
		b.pods[len(b.pods)-1].OwnerReferences[0].Name = workload + "-7c9f"
		b.claims[len(b.claims)-1].CreationTimestamp = metav1.NewTime(now.Add(-50 * time.Hour))
	}
	own("web-1", "web", gpu1)
	own("web-2", "web", gpu2)
	own("batch-1", "batch", "gpu-0000-52-00-0")
	own("new-1", "new", "gpu-0000-61-00-0")
	own("own-1", "own", "gpu-0000-9d-00-0")
	own("train-1", "train", "gpu-0000-c3-00-0")
	own("nb-1", "notebook", "gpu-0000-d1-00-0-timeslice")
	page := looked("web-1", gpu1, 5, .05, 30, 30) + looked("web-2", gpu2, 6, .08, 10, 10) +
		looked("batch-1", "gpu-0000-52-00-0", 20, .2, 30, 45) + looked("new-1", "gpu-0000-61-00-0", 5, .05, 2, 2) +
		looked("own-1", "gpu-0000-9d-00-0", 5, .05, 60, 60) + // of a claim that had the name before
		looked("train-1", "gpu-0000-c3-00-0", 5, .9, 40, 40) + looked("nb-1", "gpu-0000-d1-00-0-timeslice", 5, .1, 40, 40)
	f, err := plugins(map[string]string{"n1": page}).Read(t.Context(), now, b.claims)
	if err != nil {
		t.Fatal(err)
	}
	b.f = *f
	return b
}

func TestAdvise_PluginsGolden(t *testing.T) {
	b := pluginsBed(t)
	a := b.advise(Params{Margin: 0.2, Seen: 24 * time.Hour})
	var text bytes.Buffer
	if err := a.Print(&text); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", "plugins.txt"), text.String())
	data, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, filepath.Join("testdata", "plugins.json"), string(data)+"\n")
}

// The names of metrics are the plugin's, whose reference is made from its code.
func TestMostMetrics_AreThePlugins(t *testing.T) {
	reference, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range mostMetrics(now) {
		if !bytes.Contains(reference, []byte("| `"+name+"` | UUID, GPU_I_ID, namespace, pod, dra_claim_name, dra_device_name |")) {
			t.Errorf("the plugin has no metric %s with the labels that are read", name)
		}
	}
}
