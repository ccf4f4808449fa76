// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

// largeCluster is nodes of eight H100, half of whose GPUs are in use.
func largeCluster(t testing.TB, size int) *bed {
	b := newBed(t)
	var names []string
	for i := range size {
		names = append(names, fmt.Sprintf("gpu-%04d", i))
	}
	b.addNodes(t, "hgx-h100", names...)
	b.addClass("gpu.cleave.dev")
	gpus := b.gpus["hgx-h100"]
	teams := []string{"ml-research", "inference", "dev", "batch", "ci", "team-blue"}
	for i, name := range names {
		team := teams[i%len(teams)]
		b.claim(fmt.Sprintf("%s/train-%d", team, i), "gpu.cleave.dev", name, gpus[:2]...)
		for unit := range 1 + i%7 {
			b.claim(fmt.Sprintf("%s/small-%d-%d", teams[(i+unit)%len(teams)], i, unit), "mig-1g.10gb.cleave.dev", name,
				fmt.Sprintf("%s-mig-19-%d", gpus[2], unit))
		}
		b.claim(fmt.Sprintf("%s/medium-%d", team, i), "mig-3g.40gb.cleave.dev", name, gpus[3]+"-mig-9-4")
	}
	for i := range 20 {
		b.claim(fmt.Sprintf("batch/waits-%d", i), "gpu.cleave.dev", "")
	}
	return b
}

// BenchmarkDashboard_ThousandNodes measures what a person waits for: until the page is there and live, and from a change at the
// API server until the page shows it. make bench-dashboard prints it.
func BenchmarkDashboard_ThousandNodes(b *testing.B) {
	bed := largeCluster(b, 1000)
	start := time.Now()
	bed.serve(b)
	read := time.Since(start)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	chrome := startBrowser(ctx, b)
	gpus := bed.gpus["hgx-h100"]
	var load, live, filter, update time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		p, err := chrome.Open(ctx, 1440, 900)
		must(b, err)
		start := time.Now()
		must(b, p.Go(ctx, bed.url))
		var rows int
		must(b, p.Eval(ctx, "document.querySelectorAll('#nodes > .row').length", &rows))
		if rows != 1000 {
			b.Fatalf("the page has %d rows", rows)
		}
		load += time.Since(start)
		must(b, p.Until(ctx, "document.getElementById('state').textContent === 'live'"))
		live += time.Since(start)

		name := fmt.Sprintf("bench/new-%d", rounds)
		start = time.Now()
		bed.claim(name, "gpu.cleave.dev", "gpu-0500", gpus[7])
		must(b, p.Until(ctx, fmt.Sprintf("document.getElementById('node-gpu-0500').innerHTML.includes('%s')", name)))
		update += time.Since(start)
		bed.api.remove(claimsPath, name)
		must(b, p.Until(ctx, fmt.Sprintf("!document.getElementById('node-gpu-0500').innerHTML.includes('%s')", name)))

		start = time.Now()
		must(b, p.Press(ctx, strings.Split("/gpu-07", "")...))
		must(b, p.Until(ctx, "document.querySelectorAll('#nodes > .row').length === 100"))
		filter += time.Since(start)
		if dir := os.Getenv("CLEAVE_SCREENSHOTS"); dir != "" {
			data, err := p.Screenshot(ctx)
			must(b, err)
			must(b, os.WriteFile(dir+"/large.png", data, 0o600))
		}
	}
	per := func(d time.Duration) float64 { return d.Seconds() / float64(rounds) }
	b.ReportMetric(read.Seconds(), "s/read")
	b.ReportMetric(per(load), "s/load")
	b.ReportMetric(per(live), "s/live")
	b.ReportMetric(per(update), "s/update")
	b.ReportMetric(per(filter), "s/filter")
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB-heap")
}
