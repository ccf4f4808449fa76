// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/notices"
)

// NoticeConfig says where notices about the node's machine come from, and what follows from them.
type NoticeConfig struct {
	// Sources are some of notices.Names; none by default.
	Sources []string
	// URL is that of the metadata service.
	URL string
	notices.Policy
}

// validate reports every invalid field, by its flag.
func (c *NoticeConfig) validate() error {
	var errs []error
	for i, name := range c.Sources {
		if !slices.Contains(notices.Names(), name) || slices.Contains(c.Sources[:i], name) {
			errs = append(errs, fmt.Errorf("--notices %q is unknown or named twice: want some of %s", name, strings.Join(notices.Names(), ", ")))
		}
	}
	if len(c.Sources) == 0 {
		return nil
	}
	if u, err := url.Parse(c.URL); err != nil || u.Scheme != "http" || u.Host == "" {
		errs = append(errs, fmt.Errorf("--metadata-url %q is not of the form http://address", c.URL))
	}
	if c.Lead <= 0 || c.EvictBefore < 0 || c.EvictBefore > c.Lead {
		errs = append(errs, fmt.Errorf("--notice-lead %s must be above zero, and --notice-evict-before %s between zero and it",
			c.Lead, c.EvictBefore))
	}
	return errors.Join(errs...)
}

// errNodeUnknown: the Node was not read yet.
var errNodeUnknown = errors.New("the Node was not read yet")

// firstNotices bounds how long the first publication waits for the sources: a restart must not remove taints and restore them.
const firstNotices = 3 * time.Second

// newNotices makes the watcher of the configured sources; nil if there are none. Names were validated.
func newNotices(s *service) *notices.Watcher {
	var sources []notices.Source
	for _, name := range s.config.Notices.Sources {
		source, err := notices.NewSource(name, s.config.Notices.URL, func() ([]notices.Notice, error) {
			if !s.cluster.Known() {
				return nil, errNodeUnknown
			}
			return s.cluster.State().Node.Notices, nil
		})
		if err == nil {
			sources = append(sources, source)
		}
	}
	if len(sources) == 0 {
		return nil
	}
	return notices.NewWatcher(func() { s.loop.Mark(controller.Notices) }, sources...)
}

// noticeOperation is the report of a notice to a claim.
const noticeOperation = "notice"

// noticed reports a notice in force to claims and metrics. Until connect it reports to metrics alone.
type noticed struct {
	now func() time.Time

	mu       sync.Mutex
	records  func() []*records.Record
	pods     func(types.UID) []string
	events   *claimEvents
	decision notices.Decision
	claims   map[types.UID]*noticedClaim
}

// releasedFor is for how long a released claim is reported: a notice can be in force for days.
const releasedFor = time.Hour

// noticedClaim is a claim that had devices of the node while the notice was in force.
type noticedClaim struct {
	claim records.Claim
	pods  []string
	// since is the notice's time, or that of the claim if it came later; released is zero while the claim has devices.
	since, released time.Time
}

func newNoticed(now func() time.Time) *noticed {
	return &noticed{now: now, claims: map[types.UID]*noticedClaim{}}
}

// connect sets where claims are found and reported.
func (n *noticed) connect(all func() []*records.Record, pods func(types.UID) []string, events *claimEvents) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records, n.pods, n.events = all, pods, events
}

// report notes what follows from notices, and reports it to claims that do not know it. It does not wait.
func (n *noticed) report(d notices.Decision) {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.decision
	n.decision = d
	switch {
	case !d.Holds():
		if was.Holds() {
			n.withdraw(&was)
		}
		return
	case !d.Same(&was):
		clear(n.claims)
	}
	if n.records == nil {
		return
	}
	now, holding := n.now(), map[types.UID]bool{}
	for _, r := range n.records() {
		if !slices.ContainsFunc(r.Devices, func(dev records.Device) bool { return !dev.AdminAccess }) {
			continue
		}
		holding[r.Claim.UID] = true
		c := n.claims[r.Claim.UID]
		if c == nil {
			c = &noticedClaim{claim: r.Claim, since: now}
			n.claims[r.Claim.UID] = c
		}
		c.released = time.Time{}
		if known := n.pods(r.Claim.UID); len(known) > 0 {
			c.pods = known
		}
		n.tell(r.Claim, &d, now)
	}
	for uid, c := range n.claims {
		if !holding[uid] && c.released.IsZero() {
			c.released = now
		}
	}
	maps.DeleteFunc(n.claims, func(_ types.UID, c *noticedClaim) bool {
		return !c.released.IsZero() && now.Sub(c.released) > releasedFor
	})
}

// tell reports a notice to a claim and its pods, for each time and stage of it as claimEvents.once does.
func (n *noticed) tell(claim records.Claim, d *notices.Decision, now time.Time) {
	if n.events == nil {
		return
	}
	a := attempted{noticeOperation, claim.UID}
	n.events.once(a, fmt.Sprint(d.Source, d.ID, d.Deadline.Unix(), d.Evict), func() bool {
		return n.events.warn(warning{of: a, claim: claim, reason: controller.ReasonNotice, message: d.Advice(now)})
	})
}

// withdraw reports that a notice is over to the claims that had it.
func (n *noticed) withdraw(was *notices.Decision) {
	for _, uid := range slices.Sorted(maps.Keys(n.claims)) {
		c := n.claims[uid]
		a := attempted{noticeOperation, uid}
		if n.events == nil {
			continue
		}
		n.events.settle(a)
		if c.released.IsZero() {
			n.events.warn(warning{
				of: a, claim: c.claim, reason: controller.ReasonNoticeWithdrawn, message: "Withdrawn: " + was.String(), note: true,
			})
		}
	}
	clear(n.claims)
}

var (
	noticeDesc   = usageDesc("cleave_node_notice", "1 while a notice about the node's machine is in force.", "source", "kind")
	deadlineDesc = usageDesc("cleave_node_notice_deadline_seconds",
		"Unix time at which the machine goes, by the notice in force; none where it is unknown.")
	graceDesc = usageDesc("cleave_notice_claim_grace_seconds",
		"Time that a claim has had devices since the notice in force: it grows while state is held, and stays once state is released.",
		"namespace", "pod", "dra_claim_name", "state")
)

// Describe implements prometheus.Collector.
func (*noticed) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{noticeDesc, deadlineDesc, graceDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (n *noticed) Collect(to chan<- prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &n.decision
	if !d.Holds() {
		return
	}
	send(to, noticeDesc, 1, d.Source, string(d.Kind))
	if !d.Deadline.IsZero() {
		send(to, deadlineDesc, d.Deadline.Unix())
	}
	sent := map[string]bool{} // a claim's name can be that of an earlier one
	for _, uid := range slices.Sorted(maps.Keys(n.claims)) {
		c := n.claims[uid]
		until, state := n.now(), "held"
		if !c.released.IsZero() {
			until, state = c.released, "released"
		}
		pods := c.pods
		if len(pods) == 0 {
			pods = []string{""}
		}
		for _, pod := range pods {
			key := strings.Join([]string{c.claim.Namespace, pod, c.claim.Name, state}, "/")
			if sent[key] {
				continue
			}
			sent[key] = true
			send(to, graceDesc, until.Sub(c.since).Seconds(), c.claim.Namespace, pod, c.claim.Name, state)
		}
	}
}
