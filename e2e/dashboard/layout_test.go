// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/e2e/browser"
)

const (
	// reasoned is true once a page says why claims wait.
	reasoned = "!document.body.textContent.includes('Looking for the reason')"
	heightOf = "document.documentElement.scrollHeight"
)

// layoutFaults lists what a person cannot see, read or reach on a page: boxes beyond the window, texts beyond their boxes or cut off
// without a sign, a contrast below 4.5 (WCAG 2.2, 1.4.3), targets of less than 24 pixels (2.5.8) or below something else, and pictures
// and links without a name.
const layoutFaults = `(() => {
	const faults = [];
	const width = document.documentElement.clientWidth;
	const named = (e) => e.tagName.toLowerCase() + '.' + e.className + ' "' + e.textContent.slice(0, 40) + '"';
	const hidden = '.skip, dialog:not([open]), .cells thead, head, script';
	const visible = (e) => e.checkVisibility() && !e.closest(hidden) && e.getClientRects().length > 0;
	const all = [...document.querySelectorAll('body, body *')].filter(visible);

	if (document.documentElement.scrollWidth > width) faults.push('the page is ' + document.documentElement.scrollWidth + ' wide');
	for (const e of all) {
		const r = e.getBoundingClientRect(), s = getComputedStyle(e);
		if (r.width > 0 && (r.right > width + 0.5 || r.left < -0.5)) faults.push(named(e) + ' reaches from ' + r.left + ' to ' + r.right);
		if (s.display === 'inline' || e.clientWidth === 0) continue;
		const cut = e.scrollWidth > e.clientWidth + 1;
		if (cut && !(s.overflowX === 'hidden' && s.textOverflow === 'ellipsis' && e.closest('[title]'))) {
			faults.push(named(e) + ' is ' + e.clientWidth + ' wide, and has ' + e.scrollWidth);
		}
		if (s.overflowY === 'hidden' && e.scrollHeight > e.clientHeight + 1) faults.push(named(e) + ' is ' + e.clientHeight + ' high, and has ' + e.scrollHeight);
	}

	const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
	const rgba = (colour) => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = colour;
		canvas.fillRect(0, 0, 1, 1);
		return canvas.getImageData(0, 0, 1, 1).data;
	};
	const luminance = (c) => {
		const [r, g, b] = [...c].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
		return 0.2126 * r + 0.7152 * g + 0.0722 * b;
	};
	const backgrounds = (e) => {
		for (; e; e = e.parentElement) {
			const s = getComputedStyle(e);
			const stripes = s.backgroundImage.match(/(rgba?|color)\([^)]*\)/g);
			if (stripes) return stripes.map(rgba);
			if (rgba(s.backgroundColor)[3] === 255) return [rgba(s.backgroundColor)];
		}
		return [rgba('white')];
	};
	const contrast = (what, colour, on) => {
		const a = luminance(rgba(colour));
		for (const c of backgrounds(on)) {
			const b = luminance(c), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < 4.5) faults.push(what + ' has a contrast of ' + ratio.toFixed(2));
		}
	};
	for (const e of all) {
		if ([...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) contrast(named(e), getComputedStyle(e).color, e);
		if (e.placeholder) contrast(named(e), getComputedStyle(e, '::placeholder').color, e);
	}

	for (const e of all) {
		if (!e.matches('a[href], button, input, summary')) continue;
		if (!e.textContent.trim() && !e.ariaLabel) faults.push(named(e) + ' has no name');
		e.scrollIntoView({ block: 'center' });
		const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
		for (const [dx, dy] of [[0, 0], [-11, 0], [11, 0], [0, -11], [0, 11]]) {
			const hit = document.elementFromPoint(x + dx, y + dy);
			if (!hit || !e.contains(hit)) {
				faults.push(named(e) + ' cannot be hit at ' + dx + ',' + dy + ' of its middle');
				break;
			}
		}
	}
	scrollTo(0, 0);
	for (const e of document.querySelectorAll('[role=img]')) if (!e.ariaLabel) faults.push(named(e) + ' has no name');
	return faults;
})()`

// Every page can be read and used on a phone and on a wide screen, in light and in dark. go test -artifacts keeps the pictures.
func TestBrowser_Layout(t *testing.T) {
	b := smallCluster(t)
	b.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	chrome := startBrowser(ctx, t)
	for name, path := range map[string]string{
		"nodes": "", "nodes-empty": "?q=nothing", "gpu": "?q=gpu3", "node": "nodes/gpu-a2", "node-partitioned": "nodes/gpu-a1", "claims": "claims",
		"claim": "claims/inference/llm", "claim-pending": "claims/ml-research/pretrain", "claim-never": "claims/team-blue/huge",
		"claim-missing": "claims/team-red/nightly-gpu-",
	} {
		p := b.open(ctx, t, chrome, path)
		must(t, p.Until(ctx, reasoned))
		for _, width := range []int{390, 768, 1280, 1920} {
			for scheme, dark := range map[string]bool{"light": false, "dark": true} {
				must(t, p.Dark(ctx, dark))
				look(ctx, t, p, width, fmt.Sprintf("%s-%d-%s", name, width, scheme))
			}
		}
		must(t, p.Close(ctx))
	}
}

// look checks a page at a width, and keeps its picture.
func look(ctx context.Context, t *testing.T, p *browser.Page, width int, name string) {
	t.Helper()
	must(t, p.Resize(ctx, width, 900))
	var faults []string
	must(t, p.Eval(ctx, layoutFaults, &faults))
	for i, fault := range faults {
		if i == 12 {
			t.Errorf("%s: %d more", name, len(faults)-i)
			break
		}
		t.Errorf("%s: %s", name, fault)
	}
	var height int
	must(t, p.Eval(ctx, heightOf, &height))
	must(t, p.Resize(ctx, width, min(height, 3000)))
	data, err := p.Screenshot(ctx)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(t.ArtifactDir(), name+".png"), data, 0o600))
}
