// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"encoding/json"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// checks say when the allocator is asked on all nodes although the measure finds no room. The two agree; should they ever not,
// no pod waits for ever. With the allocator on each of a thousand nodes, an attempt takes about a second, in which no other
// pod is scheduled, so they are few.
//
// kube-scheduler tries pods that wait again all at once, mostly in the same order. So that it is not always the first that is
// checked, a demand is put off while another that is unchecked for longer may come.
type checks struct {
	now   func() time.Time
	mutex sync.Mutex
	last  time.Time
	of    map[string]check // by checkKey
	// putOff is since when demands are put off for others, zero where none is, and putOffLast when one was last.
	putOff, putOffLast time.Time
}

// check is when a demand was checked, zero for never, and when it was last asked for.
type check struct{ checked, asked time.Time }

const (
	// checkInterval is between two checks of a demand, and how long others are put off; checkGap is between any two.
	checkInterval = time.Minute
	checkGap      = 5 * time.Second
	// retryInterval is longer than kube-scheduler leaves a waiting pod without an attempt: 5 minutes, and up to 30 seconds more.
	retryInterval = 6 * time.Minute
	maxChecks     = 1000
)

// checkKey is equal for pods that the allocator answers alike: they ask for the same devices, and may be on the same nodes.
func checkKey(pod *corev1.Pod, q query) string {
	s := &pod.Spec
	nodes, err := json.Marshal([]any{s.NodeSelector, s.Affinity, s.Tolerations, s.TopologySpreadConstraints})
	if err != nil {
		return q.demand.Key
	}
	return q.demand.Key + string(nodes)
}

// due reports whether a demand is to be checked now, and notes that it is.
func (c *checks) due(key string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := c.now()
	known, found := c.of[key]
	if c.of == nil {
		c.of = map[string]check{}
	}
	if !found && len(c.of) >= maxChecks {
		maps.DeleteFunc(c.of, func(_ string, k check) bool { return now.Sub(k.asked) >= retryInterval })
	}
	if !found && len(c.of) >= maxChecks {
		clear(c.of)
	}
	known.asked = now
	c.of[key] = known
	if !known.checked.IsZero() && now.Sub(known.checked) < checkInterval || now.Sub(c.last) < checkGap {
		return false
	}
	if othersFirst(c.of, known, now) {
		if c.putOff.IsZero() || now.Sub(c.putOffLast) >= checkInterval { // that of pods tried at another time says nothing of these
			c.putOff = now
		}
		c.putOffLast = now
		if now.Sub(c.putOff) < checkInterval {
			return false
		}
	}
	known.checked = now
	c.last, c.putOff, c.of[key] = now, time.Time{}, known
	return true
}

// othersFirst reports whether another demand that pods still wait for is unchecked for longer than one.
func othersFirst(all map[string]check, than check, now time.Time) bool {
	for _, other := range all {
		if other.checked.Before(than.checked) && now.Sub(other.asked) < retryInterval {
			return true
		}
	}
	return false
}

// wrong notes that the allocator found room for a demand where the measure found none: others that ask for it are checked, too.
func (c *checks) wrong(key string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.of, key)
}
