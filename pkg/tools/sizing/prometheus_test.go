// SPDX-License-Identifier: Apache-2.0

package sizing

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

func TestRead(t *testing.T) {
	const series = `{"status":"success","warnings":["partial"],"data":{"resultType":"matrix","result":[
		{"metric":{"namespace":"ml","dra_claim_name":"web-1","dra_device_name":"gpu"},"values":[[1772323200,"5"],[1772326800,"NaN"]]}]}}`
	for name, tt := range map[string]struct {
		status   int
		answer   string
		memory   int
		warnings int
		says     string
	}{
		"series":         {http.StatusOK, series, 2, 2, ""},
		"none":           {http.StatusOK, `{"status":"success","data":{"resultType":"matrix","result":[]}}`, 0, 0, ""},
		"away":           {http.StatusServiceUnavailable, "", 0, 0, "ask Prometheus at http://127.0.0.1"},
		"not Prometheus": {http.StatusOK, "<html>", 0, 0, "cleave_claim_memory_used_bytes"},
		"another kind":   {http.StatusOK, `{"status":"success","data":{"resultType":"vector","result":[]}}`, 0, 0, "another type"},
		"refused":        {http.StatusBadRequest, `{"status":"error","errorType":"bad_data","error":"parse error"}`, 0, 0, "parse error"},
	} {
		t.Run(name, func(t *testing.T) {
			var queries []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				queries = append(queries, r.FormValue("query"))
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.answer)
			}))
			defer server.Close()
			p := Prometheus{URL: server.URL, Selector: `cluster="a"`}
			f, err := p.Read(t.Context(), time.Unix(1772330000, 0), params)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("got %v, want an error that says %q", err, tt.says)
				}
				return
			}
			if err != nil || len(f.Memory[Key{"ml", "web-1", "gpu"}]) != tt.memory || len(f.Warnings) != tt.warnings {
				t.Errorf("got %+v, %v", f, err)
			}
			want := []string{
				`max by (namespace, dra_claim_name, dra_device_name) (max_over_time(cleave_claim_memory_used_bytes{cluster="a"}[1h]))`,
				`max by (namespace, dra_claim_name, dra_device_name) (avg_over_time(cleave_claim_sm_active_ratio{cluster="a"}[1h]))`,
			}
			if diff := cmp.Diff(want, queries); diff != "" {
				t.Errorf("queries (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value := map[string]string{
			`max by (namespace, dra_claim_name, dra_device_name) (cleave_claim_memory_used_bytes{cluster="a"})`:             "1048576",
			`max by (namespace, dra_claim_name, dra_device_name) (cleave_claim_sm_active_ratio{cluster="a"})`:               "0.004",
			`max by (namespace, dra_claim_name, dra_device_name) (cleave_claim_last_active_timestamp_seconds{cluster="a"})`: "1772323200.5",
		}[r.FormValue("query")]
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"vector","result":[
			{"metric":{"namespace":"ml","dra_claim_name":"web-1","dra_device_name":"gpu"},"value":[1772330000,%q]},
			{"metric":{"namespace":"ml","dra_claim_name":"web-2","dra_device_name":"gpu"},"value":[1772330000,"NaN"]}]}}`, value)
	}))
	defer server.Close()
	used, err := (&Prometheus{URL: server.URL, Selector: `cluster="a"`}).Used(t.Context())
	if err != nil || len(used) != 1 {
		t.Fatalf("got %v, %v, want one claim", used, err)
	}
	u := used[inspect.UsedKey{Claim: "ml/web-1", Device: "gpu"}]
	if got, want := u.String(), "1 MiB, idle since 2026-03-01 00:00 UTC"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	server.Close()
	with := strings.Replace(server.URL, "http://", "http://reader:secret@", 1)
	if _, err := (&Prometheus{URL: with}).Used(t.Context()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error without the password", err)
	}
}

func TestStepOf(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{time.Hour: time.Minute, 7 * 24 * time.Hour: 14 * time.Minute, 90 * 24 * time.Hour: 180 * time.Minute} {
		if got := StepOf(since); got != want {
			t.Errorf("of %s: %s, want %s", since, got, want)
		}
	}
}
