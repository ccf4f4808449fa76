// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

const someMetrics = `# HELP cleave_claim_memory_used_bytes Memory.
# TYPE cleave_claim_memory_used_bytes gauge
cleave_claim_memory_used_bytes{GPU_I_ID="9",UUID="GPU-1",dra_claim_name="small",dra_device_name="gpu-a-mig-19-0",namespace="team",pod="p",source="process"} 6.442450944e+09
# TYPE cleave_claim_sm_active_ratio gauge
cleave_claim_sm_active_ratio{GPU_I_ID="9",UUID="GPU-1",dra_claim_name="small",dra_device_name="gpu-a-mig-19-0",namespace="team",pod="p",source="gpm"} 0.4
cleave_claim_sm_active_ratio{GPU_I_ID="",UUID="GPU-2",dra_claim_name="idle",dra_device_name="gpu-b",namespace="team",pod="",source="device"} 0
# TYPE cleave_claim_energy_joules_total counter
cleave_claim_energy_joules_total{GPU_I_ID="9",UUID="GPU-1",dra_claim_name="small",dra_device_name="gpu-a-mig-19-0",namespace="team",pod="p",source="device"} 12.5
# TYPE cleave_claim_last_active_timestamp_seconds gauge
cleave_claim_last_active_timestamp_seconds{GPU_I_ID="",UUID="GPU-2",dra_claim_name="idle",dra_device_name="gpu-b",namespace="team",pod="",source="device"} 1.767225600e+09
# TYPE cleave_gpus gauge
cleave_gpus 8
`

func ptr[T any](v T) *T { return &v }

func TestInspection_Used(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(someMetrics))
	}))
	defer server.Close()
	f := &Inspection{metricsAddress: strings.TrimPrefix(server.URL, "http://")}
	got, err := f.used(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	want := map[inspect.UsedKey]inspect.Used{
		{Claim: "team/small", Device: "gpu-a-mig-19-0"}: {
			MemoryBytes: ptr[int64](6 << 30), SMActive: ptr(.4), Source: "gpm", EnergyJoules: ptr(12.5)},
		{Claim: "team/idle", Device: "gpu-b"}: {SMActive: ptr(.0), Source: "device", LastActive: &at},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	texts := map[string]string{}
	for key, u := range got {
		texts[key.Claim] = u.String()
	}
	if diff := cmp.Diff(map[string]string{"team/small": "6144 MiB, SM 40%", "team/idle": "idle since 2026-01-01 00:00 UTC"}, texts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, address := range []string{"nowhere", "127.0.0.1:1"} {
		f.metricsAddress = address
		if got, err := f.used(t.Context()); err == nil {
			t.Errorf("%s: got %v", address, got)
		}
	}
	if _, err := usedOf(strings.NewReader("no { metrics")); err == nil {
		t.Error("what is no metrics was read")
	}
}
