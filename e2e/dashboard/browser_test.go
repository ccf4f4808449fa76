// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/browser"
)

// smallCluster is three nodes with claims of each kind.
func smallCluster(t testing.TB) *bed {
	b := newBed(t)
	b.addNodes(t, "hgx-h100", "gpu-a1", "gpu-a2")
	b.addNodes(t, "l40s", "gpu-b1")
	b.addClass("gpu.cleave.dev")
	h100 := b.gpus["hgx-h100"]
	b.claim("ml-research/train", "gpu.cleave.dev", "gpu-a1", h100[:4]...)
	b.claim("inference/llm", "mig-3g.40gb.cleave.dev", "gpu-a1", h100[4]+"-mig-9-4")
	b.claim("inference/embed", "mig-1g.10gb.cleave.dev", "gpu-a1", h100[4]+"-mig-19-0")
	b.claim("dev/scratch", "mig-1g.10gb.cleave.dev", "gpu-a1", h100[4]+"-mig-19-1")
	b.claim("batch/render", "mig-2g.20gb.cleave.dev", "gpu-a2", h100[0]+"-mig-14-2")
	b.claim("ci/run-17", "gpu.cleave.dev", "gpu-a2", h100[1])
	b.share("dev/notebook-1", "timeslice.cleave.dev", "gpu-a2", h100[2]+"-timeslice")
	b.share("team-blue/notebook", "timeslice.cleave.dev", "gpu-a2", h100[2]+"-timeslice")
	b.claim("team-blue/render", "gpu.cleave.dev", "gpu-b1", b.gpus["l40s"][0])
	b.share("inference/chat", "mps.cleave.dev", "gpu-a2", h100[3]+"-mps", "50", "40Gi")
	b.share("inference/embeddings", "mps.cleave.dev", "gpu-a2", h100[3]+"-mps", "25", "20Gi")
	b.claim("ml-research/waits", "mig-1g.10gb.cleav.dev", "")
	b.wanted("ml-research/pretrain", "gpu.cleave.dev", 6)
	b.wanted("team-blue/huge", "gpu.cleave.dev", 12)
	b.pod("ml-research/pretrain-0", "pretrain")
	b.refused("team-red/nightly")
	b.setRule("drain-a2", "gpu-a2", h100[7])
	b.setNode("gpu-b1", true)
	return b
}

func (b *bed) setRule(name, pool, device string) {
	r := resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	r.Spec.DeviceSelector = &resourceapi.DeviceTaintSelector{Pool: &pool, Device: &device}
	r.Spec.Taint = resourceapi.DeviceTaint{Key: "example.com/rma", Value: "ticket-7", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	b.api.put(rulesPath, name, constant(r, func(r *resourceapi.DeviceTaintRule, v string) { r.ResourceVersion = v }))
}

// TestScreenshots writes those of the docs: CLEAVE_E2E=1 CLEAVE_SCREENSHOTS=$PWD/docs go test -run Screenshots ./e2e/dashboard
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("CLEAVE_SCREENSHOTS")
	if dir == "" {
		t.Skip("CLEAVE_SCREENSHOTS names no directory")
	}
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	chrome := startBrowser(ctx, t)
	for _, shot := range []struct {
		name, path string
		dark       bool
	}{
		{"dashboard", "", false}, {"dashboard-dark", "", true}, {"dashboard-node", "nodes/gpu-a2", false}, {"dashboard-claim", "claims/ml-research/pretrain", false},
	} {
		p := b.open(ctx, t, chrome, shot.path)
		must(t, p.Until(ctx, reasoned))
		must(t, p.Dark(ctx, shot.dark))
		var height int
		must(t, p.Eval(ctx, heightOf, &height))
		must(t, p.Resize(ctx, 1280, min(height, 720)))
		data, err := p.Screenshot(ctx)
		must(t, err)
		must(t, os.WriteFile(fmt.Sprintf("%s/%s.png", strings.TrimSuffix(dir, "/"), shot.name), data, 0o600))
	}
}

// The pages show what the cluster has, follow changes and keys, and ask for nothing elsewhere.
func TestBrowser_Overview(t *testing.T) {
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	p := b.open(ctx, t, startBrowser(ctx, t), "")
	is := func(what, condition string) {
		t.Helper()
		if err := p.Until(ctx, condition); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	is("a row for each node", "document.querySelectorAll('#nodes > .row').length === 3")
	is("a map for each GPU", "document.querySelectorAll('#nodes .gpu').length === 20")
	is("initials of namespaces, and pods", "document.querySelector('#node-gpu-a1 .gpu i').textContent === 'mrtrain-0'")
	is("numbers of GPUs", "[...document.querySelectorAll('#node-gpu-a1 .gpu > b')].map((b) => b.textContent).join() === '0,1,2,3,4,5,6,7'")
	is("MPS shares by their amounts", `((all) => [0.5, 0.25, 0.25].every((want, i) => Math.abs(all[i].offsetWidth / all[0].parentElement.clientWidth - want) < 0.02))(
		[...document.querySelectorAll('#node-gpu-a2 .gpu')[3].querySelectorAll('i')])`)
	is("the taint", "document.querySelector('#node-gpu-a2 .badge').textContent === '1 tainted'")
	is("the cordoned node", "document.querySelector('#node-gpu-b1 .badge').textContent === 'cordoned'")
	is("the pending claim", "document.querySelector('.tile.alarm a[href=\"claims?q=is:pending\"]').textContent === '4'")

	// A change: the row is replaced, the others stay, and so do the focus and the layout.
	must(t, p.Press(ctx, "j", "j"))
	is("focus on the second row", "document.activeElement.textContent === 'gpu-a2'")
	must(t, p.Eval(ctx, "window.kept = document.getElementById('node-gpu-a1'), window.top2 = document.getElementById('node-gpu-a2').offsetTop, 0", nil))
	b.claim("ci/run-18", "gpu.cleave.dev", "gpu-a2", b.gpus["hgx-h100"][4])
	is("the new claim", "document.getElementById('node-gpu-a2').innerHTML.includes('ci/run-18')")
	is("the other row", "document.getElementById('node-gpu-a1') === window.kept")
	is("the focus", "document.activeElement.textContent === 'gpu-a2'")
	is("the layout", "document.getElementById('node-gpu-a2').offsetTop === window.top2")
	b.api.remove(claimsPath, "ci/run-18")
	is("the claim gone", "!document.getElementById('node-gpu-a2').innerHTML.includes('ci/run-18')")
	b.addNodes(t, "l40s", "gpu-a3")
	is("the new node in its place", "[...document.querySelectorAll('#nodes > .row')].map((r) => r.id).join() === 'node-gpu-a1,node-gpu-a2,node-gpu-a3,node-gpu-b1'")

	// Keys and the filter.
	must(t, p.Press(ctx, "/", "l", "4", "0"))
	is("filtered rows", "[...document.querySelectorAll('#nodes > .row')].map((r) => r.id).join() === 'node-gpu-a3,node-gpu-b1'")
	is("the address", "location.search === '?q=l40'")
	b.claim("ci/run-19", "gpu.cleave.dev", "gpu-a3", b.gpus["l40s"][1])
	is("a change in a filtered list", "document.getElementById('node-gpu-a3').innerHTML.includes('ci/run-19')")
	must(t, p.Press(ctx, "Escape", "/", "G", "P", "U", " ", "3", " ", "c", "h", "a", "t", "-", "0"))
	is("a GPU by its number and pod", `document.querySelectorAll('#nodes .gpu').length === 1 &&
		document.querySelector('#node-gpu-a2 .uses').textContent.includes('inference/chat mps (pod chat-0; 1 share, 40960 MiB, 50% cores)')`)
	must(t, p.Press(ctx, "Escape", "/", "l", "4", "0", "Escape", "?"))
	is("help", "document.getElementById('help').open")
	must(t, p.Press(ctx, "Escape"))
	is("no help", "!document.getElementById('help').open")
	is("filtered rows", "document.querySelectorAll('#nodes > .row').length === 2")
	must(t, p.Press(ctx, "ArrowDown", "ArrowUp", "Enter"))
	is("the node's page", "location.pathname === '/nodes/gpu-a3' && document.querySelectorAll('.gpu-card').length === 4")
	is("the page's script", "document.readyState === 'complete'") // which hears the next keys, and is deferred
	must(t, p.Press(ctx, "g", "c"))
	is("the claims, pending first", "location.pathname === '/claims' && document.querySelector('.claim-row .name').textContent.includes('ml-research/pretrainpod pretrain-0')")
	must(t, p.Press(ctx, "u"))
	clean(t, p, b)
}

// clean checks that a page asked for nothing elsewhere, and that nothing failed.
func clean(t *testing.T, p *browser.Page, b *bed) {
	t.Helper()
	for _, e := range p.Errors() {
		t.Errorf("on the console: %s", e)
	}
	for _, r := range p.Requests() {
		if !strings.HasPrefix(r, b.url) {
			t.Errorf("a request to %s", r)
		}
	}
	if len(p.Requests()) < 4 {
		t.Errorf("requests %q", p.Requests())
	}
}

func TestBrowser_NodeAndClaim(t *testing.T) {
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	p := b.open(ctx, t, startBrowser(ctx, t), "nodes/gpu-a1")
	must(t, p.Until(ctx, "document.querySelector('#gpus .map .a span').textContent === 'mrtrain-0'"))
	// What is free is folded, and stays open when it changes.
	must(t, p.Until(ctx, "document.querySelectorAll('details.gpu-card:not([open])').length === 3"))
	b.claim("ci/run-18", "gpu.cleave.dev", "gpu-a1", b.gpus["hgx-h100"][6])
	must(t, p.Until(ctx, "document.getElementById('gpus').textContent.includes('ci/run-18')"))
	must(t, p.Until(ctx, "document.querySelector('#gpus a[href$=\"claims/ci/run-18\"]') !== null"))
	must(t, p.Eval(ctx, "document.querySelector('#gpus a[href$=\"claims/ci/run-18\"]').click()", nil))
	must(t, p.Until(ctx, "location.pathname === '/claims/ci/run-18' && document.querySelector('#claim .badge')?.textContent === 'allocated'"))
	must(t, p.Until(ctx, "document.getElementById('state').textContent === 'live'"))
	b.api.remove(claimsPath, "ci/run-18")
	must(t, p.Until(ctx, "document.querySelector('h1').textContent === 'Not found'"))
	if errors := p.Errors(); len(errors) != 1 || !strings.Contains(errors[0], "404") { // the browser's own report of the page
		t.Errorf("on the console: %q", errors)
	}
}

// Dark mode follows the person's preference.
func TestBrowser_Dark(t *testing.T) {
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	p := b.open(ctx, t, startBrowser(ctx, t), "")
	for _, dark := range []bool{false, true} {
		must(t, p.Dark(ctx, dark))
		var background string
		must(t, p.Eval(ctx, "getComputedStyle(document.body).backgroundColor", &background))
		if want := map[bool]string{false: "rgb(246, 247, 248)", true: "rgb(20, 24, 27)"}[dark]; background != want {
			t.Errorf("dark %v: background %s, want %s", dark, background, want)
		}
	}
	clean(t, p, b)
}

// While the dashboard is away, the page says so, and goes on afterwards.
func TestBrowser_Disconnected(t *testing.T) {
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	p := b.open(ctx, t, startBrowser(ctx, t), "")
	b.cut(true)
	must(t, p.Until(ctx, "document.getElementById('state').textContent === 'disconnected' && document.body.classList.contains('stale')"))
	b.claim("ci/run-18", "gpu.cleave.dev", "gpu-a2", b.gpus["hgx-h100"][4])
	b.cut(false)
	must(t, p.Until(ctx, "document.getElementById('state').textContent === 'live'"))
	must(t, p.Until(ctx, "document.getElementById('node-gpu-a2').innerHTML.includes('ci/run-18')"))
}

// A tab that nobody looks at keeps no stream: with one for all, another tab is live. It catches up once it is looked at.
func TestBrowser_Hidden(t *testing.T) {
	b := smallCluster(t)
	b.config.MaxStreams = 1
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	chrome := startBrowser(ctx, t)
	look := func(p *browser.Page, hidden bool) {
		t.Helper()
		must(t, p.Eval(ctx, fmt.Sprintf("Object.defineProperty(document, 'hidden', {value: %t, configurable: true}), "+
			"document.dispatchEvent(new Event('visibilitychange'))", hidden), nil))
	}
	first := b.open(ctx, t, chrome, "")
	look(first, true)
	must(t, first.Until(ctx, "document.getElementById('state').textContent === 'paused'"))
	second := b.open(ctx, t, chrome, "")
	b.claim("ci/run-18", "gpu.cleave.dev", "gpu-a2", b.gpus["hgx-h100"][4])
	must(t, second.Until(ctx, "document.getElementById('node-gpu-a2').innerHTML.includes('ci/run-18')"))
	look(second, true)
	look(first, false)
	must(t, first.Until(ctx, "document.getElementById('state').textContent === 'live'"))
	must(t, first.Until(ctx, "document.getElementById('node-gpu-a2').innerHTML.includes('ci/run-18')"))
}
