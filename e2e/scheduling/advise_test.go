// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/sizing"
)

const gibibyte = 1 << 30

// history is what Prometheus has seen of a claim: a sample each minute for some time, up to now, but for a hole.
type history struct {
	claim, device string
	long          time.Duration
	hole          [2]time.Duration // before now: from, to
	memory        float64          // in GiB; at its beginning twice as much
	active        float64
}

// backfill writes histories as OpenMetrics, and makes blocks of Prometheus of them.
func backfill(t *testing.T, tools, data string, now time.Time, all []history) {
	t.Helper()
	var b strings.Builder
	for _, metric := range []string{"cleave_claim_memory_used_bytes", "cleave_claim_sm_active_ratio"} {
		fmt.Fprintf(&b, "# TYPE %s gauge\n", metric)
		for _, h := range all {
			for ago := h.long; ago >= 0; ago -= time.Minute {
				if ago <= h.hole[0] && ago > h.hole[1] {
					continue
				}
				value := h.active
				if metric == "cleave_claim_memory_used_bytes" {
					value = h.memory * gibibyte
					if ago == h.long {
						value *= 2
					}
				}
				fmt.Fprintf(&b, "%s{UUID=\"GPU-1\",GPU_I_ID=\"\",namespace=\"ml\",pod=\"\",dra_claim_name=%q,dra_device_name=%q,source=\"gpm\"} %g %d\n",
					metric, h.claim, h.device, value, now.Add(-ago).Unix())
			}
		}
	}
	b.WriteString("# EOF\n")
	path := filepath.Join(t.TempDir(), "history")
	must(t, os.WriteFile(path, []byte(b.String()), 0o600))
	if out, err := exec.CommandContext(t.Context(), filepath.Join(tools, "promtool"), "tsdb", "create-blocks-from", "openmetrics", path, data).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v: %s", err, out)
	}
}

// prometheusOf starts Prometheus on the blocks of a directory. It scrapes nothing.
func prometheusOf(t *testing.T, tools, data string) (url string) {
	t.Helper()
	port, err := cluster.FreePort(t.Context(), "127.0.0.1")
	must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	must(t, os.WriteFile(config, []byte("global: {}\n"), 0o600))
	p, err := process.Start(exec.Command(filepath.Join(tools, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+address), filepath.Join(t.TempDir(), "prometheus.log"))
	must(t, err)
	t.Cleanup(func() { _ = p.End(syscall.SIGKILL) })
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	must(t, p.WaitAnswer(ctx, "http://"+address+"/-/ready"))
	return "http://" + address
}

// TestAdvise_Prometheus asks a real Prometheus: figures are those of its samples, and a hole is not filled.
func TestAdvise_Prometheus(t *testing.T) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("set CLEAVE_E2E=1: it needs Prometheus (make test-all)")
	}
	tools, err := cluster.BuildPrometheus(t.Context(), cluster.Options{})
	must(t, err)
	now, data := time.Now().Truncate(time.Minute), t.TempDir()
	const gpu1, gpu2 = "gpu-0000-1b-00-0", "gpu-0000-43-00-0"
	backfill(t, tools, data, now, []history{
		{claim: "seen", device: gpu1, long: 30 * time.Hour, memory: 4, active: 0.05},
		{claim: "hole", device: gpu2, long: 30 * time.Hour, hole: [2]time.Duration{20 * time.Hour, 5 * time.Hour}, memory: 4, active: 0.05},
	})
	params := sizing.Params{Since: 48 * time.Hour, Step: sizing.StepOf(48 * time.Hour), Margin: 0.2, Seen: 24 * time.Hour}
	source := sizing.Prometheus{URL: prometheusOf(t, tools, data)}
	figures, err := source.Read(t.Context(), now, params)
	must(t, err)
	var claims []*resourceapi.ResourceClaim
	for name, device := range map[string]string{"seen": gpu1, "hole": gpu2} {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-31 * time.Hour))}}
		c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.Group, Pool: "n1", Device: device}}}}
		claims = append(claims, c)
	}
	c := sizing.NewCluster(v1alpha1.Group, claims)
	inventory, err := packing.Inventory(t.Context(), "hgx-h100")
	must(t, err)
	list := nodeslices.Objects(policy.Apply(&v1alpha1.NodePolicy{}, inventory.Node, policy.Capabilities{}), v1alpha1.Group, "n1")
	for i := range list.Items {
		c.AddSlice(&list.Items[i])
	}
	advice, err := c.Advise(figures, params)
	must(t, err)
	for i, want := range []struct {
		workload string
		hours    float64
		verdict  sizing.Verdict
	}{{"ResourceClaim/hole", 15, sizing.TooLittle}, {"ResourceClaim/seen", 30, sizing.Smaller}} {
		w := advice.Workloads[i]
		if w.Workload != want.workload || math.Abs(w.Hours-want.hours) > 0.3 || w.Verdict != want.verdict {
			t.Errorf("got %+v, want %+v", w, want)
		}
		if w.Memory == nil || *w.Memory.P50 != 4*gibibyte || w.Memory.Max != 8*gibibyte || w.Activity == nil || math.Abs(*w.Activity.P95-0.05) > 1e-6 {
			t.Errorf("%s: memory %+v, activity %+v", w.Workload, w.Memory, w.Activity)
		}
	}
	if advice.WholeNow != 6 || advice.WholeThen != 6 {
		t.Errorf("%d GPUs are whole, then %d", advice.WholeNow, advice.WholeThen)
	}
}
