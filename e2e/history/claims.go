// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"slices"
	"time"
)

// never is a time after every history.
const never = time.Duration(math.MaxInt64)

// claim is what a history has of one claim.
type claim struct {
	uid string
	// seen are its states at the API server.
	seen  []Event
	calls []*call
	// tenures are the times for which it had its devices, as the kubelet knows.
	tenures []*tenure
}

// call is a request of the kubelet, with its answer if there is one.
type call struct {
	call     Event
	method   Method
	returned *Event
	answer   Return
}

func (c *call) ok() bool { return c.returned != nil && c.answer.Error == "" }

// tenure is a time for which a claim had its devices. It began within acquire and ended within release, and holds are the
// times in which it was certainly had.
type tenure struct {
	prepared *call
	devices  []string
	acquire  span
	release  span
	// ended is the event that ended it: nil where nothing did.
	ended *Event
	// gone: nobody told the plugin of the end, which has to find out.
	gone  bool
	holds []hold
}

// hold is an event that shows that a claim had its devices, at some time of a span.
type hold struct {
	span
	event Event
}

func (c *checker) claim(uid string) *claim {
	if c.byUID[uid] == nil {
		c.byUID[uid] = &claim{uid: uid}
		c.claims = append(c.claims, c.byUID[uid])
	}
	return c.byUID[uid]
}

// readClaims collects what is known of each claim.
func (c *checker) readClaims(events []Event) {
	returns := map[string]Event{}
	for _, e := range events {
		if r, ok := e.Fact.(Return); ok {
			returns[r.ID+r.Claim] = e
		}
	}
	boots := []Event{}
	ended := map[string]*call{}
	for _, e := range events {
		switch f := e.Fact.(type) {
		case Claim:
			cl := c.claim(f.UID)
			cl.seen = append(cl.seen, e)
		case Call:
			cl := c.claim(f.Claim)
			k := &call{call: e, method: f.Method}
			if r, ok := returns[f.ID+f.Claim]; ok {
				k.returned, k.answer = &r, r.Fact.(Return)
			}
			cl.calls = append(cl.calls, k)
			ended[f.ID+f.Claim] = k
		case Hardware:
			if f.Change == Booted {
				boots = append(boots, e)
			}
		}
	}
	for _, cl := range c.claims {
		c.findTenures(cl, boots)
	}
}

// step is something that a claim's tenures depend on.
type step struct {
	at   time.Duration
	call *call // of a return, or of a call without one
	// end is an event that ends the allocation, which may have happened since from.
	end  *Event
	from time.Duration
}

// steps are in the order of time: an answer counts when it is given, a call without an answer when it is made.
func (c *checker) steps(cl *claim, boots []Event) []step {
	var steps []step
	for _, k := range cl.calls {
		at := k.call.At
		if k.returned != nil {
			at = k.returned.At
		}
		steps = append(steps, step{at: at, call: k})
	}
	for i := range cl.seen {
		if cl.seen[i].Fact.(Claim).State != ClaimAllocated {
			from := c.earliest(SourceAPI, cl.seen[i].At) - c.limits.APILag
			steps = append(steps, step{at: cl.seen[i].At, from: from, end: &cl.seen[i]})
		}
	}
	for i := range boots {
		steps = append(steps, step{at: boots[i].At, from: boots[i].At, end: &boots[i]})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(min(max(a.at-b.at, -1), 1)) })
	return steps
}

// findTenures finds when a claim had its devices.
func (c *checker) findTenures(cl *claim, boots []Event) {
	w := &tenureWalk{claim: cl}
	for _, s := range c.steps(cl, boots) {
		switch {
		case s.end != nil:
			w.end(s)
		case s.call.returned == nil:
			w.unknown(s.call)
		case s.call.ok() && s.call.method == Prepare:
			w.prepared(s.call)
		case s.call.ok():
			w.unprepared(s.call)
		}
	}
	w.finish()
}

// tenureWalk finds the tenures of one claim. A call without an answer may have had its effect at any time until a later one
// is answered.
type tenureWalk struct {
	claim *claim
	now   *tenure
	// preparing and unpreparing are the first of the calls without an answer that may have had an effect since.
	preparing, unpreparing *Event
}

func (w *tenureWalk) unknown(k *call) {
	switch {
	case k.method == Prepare && w.preparing == nil:
		w.preparing = &k.call
	case k.method == Unprepare && w.unpreparing == nil:
		w.unpreparing = &k.call
	}
}

func (w *tenureWalk) prepared(k *call) {
	answered := span{k.call.At, k.returned.At}
	if w.now != nil && w.unpreparing == nil && !w.now.gone {
		w.now.holds = append(w.now.holds, hold{answered, *k.returned})
		w.preparing = nil
		return
	}
	if w.now != nil { // which may have ended before
		w.close(span{w.now.release.from, answered.to}, k.returned)
	} else if w.preparing != nil {
		answered.from = min(answered.from, w.preparing.At)
	}
	w.now = &tenure{prepared: k, acquire: answered, release: span{never, never}}
	for _, d := range k.answer.Devices {
		if !slices.Contains(w.now.devices, d.Device) {
			w.now.devices = append(w.now.devices, d.Device)
		}
	}
	w.preparing, w.unpreparing = nil, nil
}

func (w *tenureWalk) unprepared(k *call) {
	if w.now != nil {
		from := min(k.call.At, w.now.release.from)
		if w.unpreparing != nil {
			from = min(from, w.unpreparing.At)
		}
		w.close(span{from, k.returned.At}, k.returned)
	}
	w.preparing, w.unpreparing = nil, nil
}

// end is the end of the allocation at the API server, of which the plugin learns by itself, or of everything by a reboot.
func (w *tenureWalk) end(s step) {
	if w.now == nil {
		return
	}
	if _, boot := s.end.Fact.(Hardware); boot {
		w.close(span{min(s.from, w.now.release.from), s.at}, s.end)
		w.preparing, w.unpreparing = nil, nil
		return
	}
	if !w.now.gone {
		w.now.gone, w.now.ended, w.now.release.from = true, s.end, min(max(s.from, w.now.acquire.from), w.now.release.from)
	}
}

func (w *tenureWalk) close(release span, by *Event) {
	if w.unpreparing != nil {
		release.from = min(release.from, w.unpreparing.At)
	}
	w.now.release, w.now.ended = release, by
	w.claim.tenures = append(w.claim.tenures, w.now)
	w.now = nil
}

func (w *tenureWalk) finish() {
	if w.now == nil {
		return
	}
	if w.unpreparing != nil {
		w.now.release.from = min(w.now.release.from, w.unpreparing.At)
		if w.now.ended == nil {
			w.now.ended = w.unpreparing
		}
	}
	w.claim.tenures = append(w.claim.tenures, w.now)
}

// allocated is what a claim was allocated of a device, by the first of its allocations that has it. A claim may have several
// shares of one device.
func (cl *claim) allocated(device string) (Allocated, bool) {
	for _, e := range cl.seen {
		var all *Allocated
		for _, d := range e.Fact.(Claim).Devices {
			if d.Device != device {
				continue
			}
			if all == nil {
				all = &Allocated{Device: device, Admin: true, Consumed: map[string]int64{}}
			}
			all.Admin = all.Admin && d.Admin
			for name, n := range d.Consumed {
				all.Consumed[name] += n
			}
		}
		if all != nil {
			return *all, true
		}
	}
	return Allocated{}, false
}

// owned are the devices of a tenure that it owns something of: not those that it only looks at.
func (cl *claim) owned(t *tenure) []Allocated {
	var owned []Allocated
	for _, name := range t.devices {
		a, ok := cl.allocated(name)
		if !ok {
			a = Allocated{Device: name}
		}
		if !a.Admin {
			owned = append(owned, a)
		}
	}
	return owned
}

// has reports whether a pod uses the claim.
func (cl *claim) has(pod string) bool {
	return slices.ContainsFunc(cl.seen, func(e Event) bool { return slices.Contains(e.Fact.(Claim).Pods, pod) })
}
