// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// Page is a tab.
type Page struct {
	browser *Browser
	session string

	mu       sync.Mutex
	errors   []string
	requests []string
}

// Open opens a tab without a page.
func (b *Browser) Open(ctx context.Context, width, height int) (*Page, error) {
	var target struct {
		ID string `json:"targetId"`
	}
	if err := b.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return nil, err
	}
	var session struct {
		ID string `json:"sessionId"`
	}
	if err := b.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": target.ID, "flatten": true}, &session); err != nil {
		return nil, err
	}
	p := &Page{browser: b, session: session.ID}
	b.mu.Lock()
	b.pages[session.ID] = p
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		if err := p.call(ctx, domain+".enable", nil, nil); err != nil {
			return nil, err
		}
	}
	return p, p.Resize(ctx, width, height)
}

// Close closes the tab.
func (p *Page) Close(ctx context.Context) error {
	p.browser.mu.Lock()
	delete(p.browser.pages, p.session)
	p.browser.mu.Unlock()
	return p.call(ctx, "Page.close", nil, nil)
}

// Resize sets the size of the window.
func (p *Page) Resize(ctx context.Context, width, height int) error {
	size := map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}
	return p.call(ctx, "Emulation.setDeviceMetricsOverride", size, nil)
}

func (p *Page) call(ctx context.Context, method string, params, result any) error {
	if params == nil {
		params = struct{}{}
	}
	return p.browser.call(ctx, p.session, method, params, result)
}

// happened notes errors and requests.
func (p *Page) happened(method string, params json.RawMessage) {
	var e struct {
		Type    string `json:"type"`
		Request struct {
			URL string `json:"url"`
		} `json:"request"`
		Entry struct {
			Level, Text, URL string
		} `json:"entry"`
	}
	if json.Unmarshal(params, &e) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case method == "Network.requestWillBeSent":
		p.requests = append(p.requests, e.Request.URL)
	case method == "Runtime.exceptionThrown", method == "Runtime.consoleAPICalled" && (e.Type == "error" || e.Type == "warning"):
		p.errors = append(p.errors, string(params))
	case method == "Log.entryAdded" && (e.Entry.Level == "error" || e.Entry.Level == "warning"):
		p.errors = append(p.errors, e.Entry.Text+" "+e.Entry.URL)
	}
}

// Errors are those of the console.
func (p *Page) Errors() []string { p.mu.Lock(); defer p.mu.Unlock(); return slices.Clone(p.errors) }

// Requests are the addresses of all that was asked for.
func (p *Page) Requests() []string { p.mu.Lock(); defer p.mu.Unlock(); return slices.Clone(p.requests) }

// Go opens an address, and waits until it is loaded.
func (p *Page) Go(ctx context.Context, url string) error {
	var result struct {
		ErrorText string `json:"errorText"`
	}
	if err := p.call(ctx, "Page.navigate", map[string]any{"url": url}, &result); err != nil {
		return err
	}
	if result.ErrorText != "" {
		return fmt.Errorf("open %s: %s", url, result.ErrorText)
	}
	return p.Until(ctx, "document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Eval returns the value of a JavaScript expression, of a promise what it resolves to.
func (p *Page) Eval(ctx context.Context, expression string, value any) error {
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := p.call(ctx, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &result)
	if err != nil {
		return err
	}
	if e := result.Exception; e != nil {
		return fmt.Errorf("evaluate %s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if value == nil || len(result.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(result.Result.Value, value)
}

// Until waits until a condition in JavaScript is true.
func (p *Page) Until(ctx context.Context, condition string) error {
	for {
		var is bool
		// The page that is asked may go while it is loaded; then the next is asked.
		err := p.Eval(ctx, fmt.Sprintf(`new Promise((done) => {
			const end = Date.now() + 1000;
			const look = () => { if (%s) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 10); };
			look();
		})`, condition), &is)
		if err == nil && is {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait in the browser for %s: %w", condition, ctx.Err())
		}
	}
}

// keyCodes are of keys that are no characters.
var keyCodes = map[string]int{"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9}

// Press presses keys: characters, or names such as Enter.
func (p *Page) Press(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key, "text": key}
		if code := keyCodes[key]; code != 0 {
			down = map[string]any{"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code}
			if key == "Enter" {
				down["text"] = "\r"
			}
		}
		if err := p.call(ctx, "Input.dispatchKeyEvent", down, nil); err != nil {
			return err
		}
		up := map[string]any{"type": "keyUp", "key": key}
		if err := p.call(ctx, "Input.dispatchKeyEvent", up, nil); err != nil {
			return err
		}
	}
	return nil
}

// Dark switches what the person prefers.
func (p *Page) Dark(ctx context.Context, dark bool) error {
	value := "light"
	if dark {
		value = "dark"
	}
	features := []map[string]string{{"name": "prefers-color-scheme", "value": value}}
	return p.call(ctx, "Emulation.setEmulatedMedia", map[string]any{"features": features}, nil)
}

// Screenshot is what the window shows, as PNG.
func (p *Page) Screenshot(ctx context.Context) ([]byte, error) {
	var result struct {
		Data string `json:"data"`
	}
	if err := p.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &result); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(result.Data)
}
