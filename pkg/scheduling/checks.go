// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"sync"
	"time"
)

// checks say when the allocator is asked on all nodes although the measure finds no room. The two agree; should they ever not,
// no pod waits for ever. With the allocator on each of a thousand nodes, an attempt takes about a second, in which no other
// pod is scheduled, so they are few.
type checks struct {
	now   func() time.Time
	mutex sync.Mutex
	last  time.Time
	of    map[string]time.Time // by the key of a demand
}

const (
	// checkInterval is between two checks of a demand, checkGap between any two.
	checkInterval = time.Minute
	checkGap      = 5 * time.Second
	maxChecks     = 1000
)

// due reports whether a demand is to be checked now, and notes that it is.
func (c *checks) due(key string) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	now := c.now()
	if last, ok := c.of[key]; ok && now.Sub(last) < checkInterval || now.Sub(c.last) < checkGap {
		return false
	}
	if c.of == nil || len(c.of) >= maxChecks {
		c.of = map[string]time.Time{}
	}
	c.last, c.of[key] = now, now
	return true
}

// wrong notes that the allocator found room for a demand where the measure found none: others that ask for it are checked, too.
func (c *checks) wrong(key string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.of, key)
}
