// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/html"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
)

// reasons finds out why claims wait, one batch at a time, apart from the pages that ask: on a large cluster a batch takes seconds.
type reasons struct {
	explain func(ctx context.Context, keys []string) (map[string]*explain.Explanation, error)
	wake    chan struct{}

	mu     sync.Mutex
	wanted map[string]uint64 // the snapshot in which the claim waits, by claim
	known  map[string]answer
	due    time.Time // no batch begins before
	next   chan struct{}
}

// answer is the reason of one claim.
type answer struct {
	explanation *explain.Explanation
	err         error
	version     uint64 // of the snapshot, or an older one
	at          time.Time
}

const (
	// mostKnown bounds the answers that are kept, and with them a batch.
	mostKnown = 500
	// explainTimeout bounds a batch.
	explainTimeout = time.Minute
	// restFactor leaves the processor to others: after a batch, reasons rest this many times as long as it took.
	restFactor = 4
	// oldest is how old an answer may be though no snapshot has followed: a pod is new to its scheduler only for a while.
	oldest = time.Minute
)

func newReasons(find func(ctx context.Context, keys []string) (map[string]*explain.Explanation, error)) *reasons {
	return &reasons{
		explain: find, wake: make(chan struct{}, 1), next: make(chan struct{}), wanted: map[string]uint64{}, known: map[string]answer{},
	}
}

// changed is closed when there are new answers.
func (r *reasons) changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next
}

// of returns the newest answer, which may be none yet, and asks for a newer one if the cluster has changed since, or time has passed.
func (r *reasons) of(key string, version uint64) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.known[key]
	if (a.version < version || time.Since(a.at) > oldest) && (len(r.wanted) < mostKnown || r.wanted[key] != 0) {
		r.wanted[key] = version
		select {
		case r.wake <- struct{}{}:
		default: // it is awake
		}
	}
	return a
}

// run answers until ctx ends.
func (r *reasons) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		rest := time.NewTimer(time.Until(r.due))
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
		r.batch(ctx)
	}
}

// batch answers the pending questions.
func (r *reasons) batch(ctx context.Context) {
	r.mu.Lock()
	wanted := r.wanted
	r.wanted = map[string]uint64{}
	r.mu.Unlock()
	if len(wanted) == 0 {
		return
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, explainTimeout)
	answers, err := r.ask(limited, slices.Sorted(maps.Keys(wanted)))
	cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known)+len(wanted) > mostKnown {
		r.known = map[string]answer{}
	}
	for key, version := range wanted {
		r.known[key] = answer{answers[key], err, version, start}
	}
	r.due = time.Now().Add(restFactor * time.Since(start))
	close(r.next)
	r.next = make(chan struct{})
}

// ask finds answers. Any user may have written a claim that makes it panic; that must not end the dashboard.
func (r *reasons) ask(ctx context.Context, keys []string) (answers map[string]*explain.Explanation, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("explain pending claims: %v", p)
			klog.FromContext(ctx).Error(err, "Explaining pending claims panicked; report it", "claims", keys, "stack", string(debug.Stack()))
		}
	}()
	return r.explain(ctx, keys)
}

// why is the reason in one line.
func (r *renderer) why(key string, version uint64) string {
	a := r.reasons.of(key, version)
	e := a.explanation
	switch {
	case a.err != nil:
		return "The reason cannot be found: " + a.err.Error()
	case e == nil:
		return "Looking for the reason …"
	case e.State == explain.Fits:
		return "Enough devices are free: it waits for a pod, or for the scheduler."
	case e.State == explain.Allocated:
		return "It is allocated."
	case len(e.Causes) > 0:
		return e.Causes[0].Message
	case len(e.Limits) > 0:
		return "Never on the nodes of this cluster: " + e.Limits[0].Message
	}
	for _, g := range e.Groups {
		if !g.Fits && len(g.Causes) > 0 {
			return "Not now: " + nodesText(g.Nodes) + ": " + g.Causes[0].Message
		}
	}
	return "No node has devices."
}

// explanation is the whole reason.
func (r *renderer) explanation(key string, version uint64) *html.Node {
	a := r.reasons.of(key, version)
	e := a.explanation
	section := el("section", attr{"aria-live", "polite"}, el("h2", "Why it waits"))
	if e == nil || a.err != nil || e.State == explain.Fits {
		section.AppendChild(el("p", r.why(key, version)))
	}
	if e == nil {
		return section
	}
	section.AppendChild(el("p", e.Headline()))
	several := e.Several()
	add(section, []any{causeList(e.Limits, several), causeList(e.Causes, several)})
	for _, g := range e.Told() {
		group := el("div", class("group"), el("strong", nodesText(g.Nodes)))
		if g.Fits {
			group.AppendChild(el("p", "enough devices are free"))
		}
		add(group, []any{causeList(g.Causes, several)})
		section.AppendChild(group)
	}
	if len(e.Alternatives) > 0 {
		ul := el("ul")
		for _, alternative := range e.Alternatives {
			ul.AppendChild(el("li", alternative.String()))
		}
		section.AppendChild(el("div", class("group"), el("strong", "What would fit now"), ul))
	}
	for _, note := range e.Notes {
		section.AppendChild(el("p", class("note"), note))
	}
	section.AppendChild(r.command(e.Subject))
	return section
}

// command asks the same of the program, where it has more of the cluster: pods that run, their Events.
func (r *renderer) command(subject string) *html.Node {
	kind, key, _ := strings.Cut(subject, " ")
	namespace, name, _ := strings.Cut(key, "/")
	what, more := "claim", "The same as text: "
	if kind == "Pod" {
		what, more = "pod", "More, such as who could be evicted: "
	}
	flags := "-n " + namespace
	if r.driver != "" && r.driver != v1alpha1.Group {
		flags += " --driver-name " + r.driver
	}
	return el("p", class("note"), more, el("code", fmt.Sprintf("cleave explain %s %s %s", what, flags, name)))
}

// causeList is nil without causes.
func causeList(causes []explain.Cause, several bool) *html.Node {
	if len(causes) == 0 {
		return nil
	}
	ul := el("ul")
	for i := range causes {
		li := el("li", linked(causes[i].Text(several), causes[i].Claims))
		if causes[i].Remedy != "" {
			li.AppendChild(el("div", class("remedy"), causes[i].Remedy))
		}
		ul.AppendChild(li)
	}
	return ul
}

// linked is a cause with links to the claims that it names.
func linked(text string, uses []explain.Use) []any {
	var parts []any
	for i := range uses {
		before, after, found := strings.Cut(text, uses[i].Claim)
		namespace, name, ok := strings.Cut(uses[i].Claim, "/")
		if !found || !ok || !strings.HasSuffix(before, " ") || strings.HasPrefix(after, "-") || strings.HasPrefix(after, ".") {
			continue // of a longer name
		}
		parts = append(parts, before, el("a", attr{"href", "../../" + claimPath(namespace, name)}, uses[i].Claim))
		text = after
	}
	return append(parts, text)
}

// nodesText names the first of a group's nodes.
func nodesText(nodes []string) string {
	const most = 5
	switch {
	case len(nodes) == 1:
		return "Node " + nodes[0]
	case len(nodes) > most:
		return fmt.Sprintf("%d nodes (%s and %d more)", len(nodes), strings.Join(nodes[:most], ", "), len(nodes)-most)
	default:
		return fmt.Sprintf("%d nodes (%s)", len(nodes), strings.Join(nodes, ", "))
	}
}
