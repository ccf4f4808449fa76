// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

// Report is what a soak ends in.
type Report struct {
	Seed uint64 `json:"seed"`
	// Seconds that pods and faults came for.
	Seconds float64 `json:"seconds"`
	// Pods that were created, and claims of those that ran.
	Pods   int `json:"pods"`
	Claims int `json:"claims"`
	// Random are the claims at random that the API server was given, that it admitted, and that a pod ran with.
	Random RandomClaims `json:"random"`
	// Preempted pods were evicted for urgent ones, and Collided ones as their devices had been allocated twice.
	Preempted int `json:"preempted"`
	Collided  int `json:"collided"`
	// PodsEnded is how many pods had containers that ended by a fault that ends containers, such as a reboot.
	PodsEnded int           `json:"podsEnded"`
	Faults    []FaultReport `json:"faults"`
	// Injected is their number.
	Injected int `json:"injected"`
	// Twofold are faults with a crash in their midst. They are counted with both kinds.
	Twofold FaultReport `json:"twofold"`
	// Own is the recovery from faults of Cleave's own programs.
	Own Recovery `json:"own"`
	// Leaks are what is left once all pods are gone.
	Leaks      []string `json:"leaks"`
	Violations []string `json:"violations"`
}

// RandomClaims counts them.
type RandomClaims struct {
	Made     int `json:"made"`
	Admitted int `json:"admitted"`
	Ran      int `json:"ran"`
}

// FaultReport is about the faults of one kind.
type FaultReport struct {
	Kind  Kind `json:"kind"`
	Count int  `json:"count"`
	// Recovery from those without a crash in their midst.
	Recovery Recovery `json:"recovery"`
}

// Recovery is how long recovery took, in seconds.
type Recovery struct {
	P50 float64 `json:"p50Seconds"`
	P99 float64 `json:"p99Seconds"`
}

// OK reports whether the soak found nothing.
func (r *Report) OK() bool { return len(r.Leaks) == 0 && len(r.Violations) == 0 }

// What a soak of an hour or longer has, for each hour, and the longest recovery from faults of Cleave's own programs (p99).
const (
	claimsAnHour = 5000
	faultsAnHour = 200
	randomAnHour = 60
	// evictedAnHour is how many pods are evicted at least, for urgent ones and for collisions: with fewer, nothing is shown of either.
	evictedAnHour = 30
	ownP99        = 40.0   // seconds: two attempts of the kubelet, see README.md, and ten for Cleave
	anHour        = 3600.0 // seconds
)

// Missed says what a soak has too little of, or what took too long; nothing for one of less than an hour.
func (r *Report) Missed() []string {
	if r.Seconds < anHour {
		return nil
	}
	var missed []string
	check := func(bad bool, format string, args ...any) {
		if bad {
			missed = append(missed, fmt.Sprintf(format, args...))
		}
	}
	hours := r.Seconds / anHour
	check(float64(r.Claims) < claimsAnHour*hours, "%d claims in %.1f hours, want %d an hour", r.Claims, hours, claimsAnHour)
	check(float64(r.Injected) < faultsAnHour*hours, "%d faults in %.1f hours, want %d an hour", r.Injected, hours, faultsAnHour)
	check(float64(r.Random.Ran) < randomAnHour*hours,
		"pods ran with %d random claims in %.1f hours, want %d an hour", r.Random.Ran, hours, randomAnHour)
	check(float64(r.Preempted) < evictedAnHour*hours,
		"%d pods were evicted for urgent ones in %.1f hours, want %d an hour", r.Preempted, hours, evictedAnHour)
	check(float64(r.Collided) < evictedAnHour*hours,
		"%d pods were evicted as their devices had been allocated twice in %.1f hours, want %d an hour", r.Collided, hours, evictedAnHour)
	check(r.Own.P99 > ownP99, "recovery from faults of Cleave's own programs took %.1f s (p99), want %.0f s at most", r.Own.P99, ownP99)
	return missed
}

// Write writes the report for people.
func (r *Report) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FAULT\tCOUNT\tRECOVERY P50\tP99")
	for _, f := range r.Faults {
		fmt.Fprintf(w, "%s\t%d\t%.1f s\t%.1f s\n", f.Kind, f.Count, f.Recovery.P50, f.Recovery.P99)
	}
	fmt.Fprintf(w, "%s\t%d\t%.1f s\t%.1f s\n", r.Twofold.Kind, r.Twofold.Count, r.Twofold.Recovery.P50, r.Twofold.Recovery.P99)
	fmt.Fprintf(w, "all\t%d\t\t\nof Cleave's own programs\t\t%.1f s\t%.1f s\n", r.Injected, r.Own.P50, r.Own.P99)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	_, err := fmt.Fprintf(out, "\nseed %d, %.0f s: %d pods (%d disturbed by faults that end containers), %d claims, %d faults, "+
		"%d violations, %d leaks; of %d random claims the API server admitted %d, and pods ran with %d; "+
		"%d pods were evicted for urgent ones, and %d as their devices had been allocated twice\n",
		r.Seed, r.Seconds, r.Pods, r.PodsEnded, r.Claims, r.Injected, len(r.Violations), len(r.Leaks),
		r.Random.Made, r.Random.Admitted, r.Random.Ran, r.Preempted, r.Collided)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	for _, v := range r.Violations {
		fmt.Fprintln(out, "violation:", v)
	}
	for _, l := range r.Leaks {
		fmt.Fprintln(out, "leak:", l)
	}
	return nil
}

// twofold is what a report calls two faults at a time.
const twofold Kind = "two at a time"

// recovered is one recovery, from a fault or from two.
type recovered struct {
	kind, second Kind
	took         time.Duration
}

// tally counts while a soak runs.
type tally struct {
	out  io.Writer
	seed uint64

	mu         sync.Mutex
	start      time.Time
	pods       int
	claims     int
	random     RandomClaims
	podsEnded  int
	preempted  int
	collided   int
	recoveries []recovered
	violations []string
	pardons    map[victims]pardon
	// refused are pods that can never run, as the scheduler knew nothing of shares when it allocated one.
	refused map[string]bool
}

// pardon is whether containers of pods may end by a fault now, and when that was said last.
type pardon struct {
	now  bool
	last time.Time
}

// covers reports whether containers of a pod that was created at a time may have ended by a fault.
func (p pardon) covers(created time.Time) bool { return p.now || p.last.After(created) }

func newTally(out io.Writer, seed uint64) *tally {
	return &tally{out: out, seed: seed, start: time.Now(), pardons: map[victims]pardon{}, refused: map[string]bool{}}
}

func (t *tally) log(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(format, args...)
}

// print is log for those who have the lock.
func (t *tally) print(format string, args ...any) {
	fmt.Fprintf(t.out, "%7.1f s  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
}

func (t *tally) violation(rule, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := rule + ": " + strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	t.violations = append(t.violations, fmt.Sprintf("after %.1f s: %s", time.Since(t.start).Seconds(), text))
	t.print("VIOLATION %s", text)
}

func (t *tally) podCreated() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pods++
}

// claimsHad counts claims that pods ran with.
func (t *tally) claimsHad(claims int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claims += claims
}

// randomClaim counts a random claim: whether the API server admitted it, and whether a pod ran with it.
func (t *tally) randomClaim(admitted, ran bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.random.Made++
	if admitted {
		t.random.Admitted++
	}
	if ran {
		t.random.Ran++
	}
}

// pardonPods says that from now on, or no longer, containers of some pods may end by a fault.
func (t *tally) pardonPods(of victims, begins bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if of != noPods {
		t.pardons[of] = pardon{begins, time.Now()}
	}
}

// podRefused says that a pod can never run and is deleted.
func (t *tally) podRefused(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused[name] = true
}

// isRefused reports whether podRefused was called for a pod.
func (t *tally) isRefused(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refused[name]
}

// podEnded notes that containers of a pod, which was created at a time, ended before it was deleted.
func (t *tally) podEnded(name string, shape Shape, created time.Time, how string) {
	t.mu.Lock()
	pardoned := t.refused[name] || t.pardons[allPods].covers(created) || shape.usesMPS() && t.pardons[mpsPods].covers(created)
	if pardoned {
		t.podsEnded++
	}
	t.mu.Unlock()
	if !pardoned {
		t.violation("pod", "containers of %s ended, and there was no fault that ends them: %s", name, how)
	}
}

// evictions counts the pods that were evicted, by their UIDs with the reason of each. Those that are gone for no reason are violations.
func (t *tally) evictions(reasons map[string]string, lost []*corev1.Pod) {
	t.mu.Lock()
	for _, reason := range reasons {
		switch reason {
		case history.ReasonPreempted:
			t.preempted++
		case history.ReasonAllocatedTwice:
			t.collided++
		}
	}
	lost = slices.DeleteFunc(slices.Clone(lost), func(p *corev1.Pod) bool { return t.refused[p.Name] })
	t.mu.Unlock()
	for _, p := range lost {
		if reason := reasons[string(p.UID)]; reason != history.ReasonPreempted && reason != history.ReasonAllocatedTwice {
			t.violation("pod", "%s is gone, and nobody evicted it for another: %q; %s", p.Name, reason, describe(p))
		}
	}
}

func (t *tally) recovered(f Fault, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recoveries = append(t.recoveries, recovered{f.Kind, f.Meanwhile, took})
	also := ""
	if f.Meanwhile != "" {
		also = fmt.Sprintf(", %s meanwhile", f.Meanwhile)
	}
	t.print("fault %d: %s%s: recovered in %.1f s; %d claims so far", f.Index, f.Kind, also, took.Seconds(), t.claims)
}

func (t *tally) report(took time.Duration, leaks []string) *Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &Report{Seed: t.seed, Seconds: took.Seconds(), Pods: t.pods, Claims: t.claims, Random: t.random, PodsEnded: t.podsEnded,
		Preempted: t.preempted, Collided: t.collided, Leaks: leaks, Violations: t.violations}
	var own, two []time.Duration
	for _, one := range t.recoveries {
		switch {
		case one.second != "":
			two = append(two, one.took)
		case one.kind.Own():
			own = append(own, one.took)
		}
	}
	for _, k := range Kinds() {
		if f := t.reportOf(k); f.Count > 0 {
			r.Faults = append(r.Faults, f)
			r.Injected += f.Count
		}
	}
	r.Own, r.Twofold = recoveryOf(own), FaultReport{twofold, len(two), recoveryOf(two)}
	return r
}

func (t *tally) reportOf(k Kind) FaultReport {
	r := FaultReport{Kind: k}
	var alone []time.Duration
	for _, one := range t.recoveries {
		if one.kind == k || one.second == k {
			r.Count++
		}
		if one.kind == k && one.second == "" {
			alone = append(alone, one.took)
		}
	}
	r.Recovery = recoveryOf(alone)
	return r
}

func recoveryOf(times []time.Duration) Recovery {
	slices.Sort(times)
	return Recovery{P50: percentile(times, 50), P99: percentile(times, 99)}
}

// percentile of sorted times by the nearest rank, in seconds.
func percentile(sorted []time.Duration, p int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*p + 99) / 100
	return sorted[max(rank, 1)-1].Seconds()
}
