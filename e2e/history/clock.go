// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is what the events of a history have in common: the machine's monotonic clock, which all its processes share and
// which no change of the wall clock moves.
type Clock struct {
	start time.Duration // of the monotonic clock
	wall  time.Time
}

// StartClock starts a clock at zero.
func StartClock() (Clock, error) {
	start, err := Monotonic()
	return Clock{start: start, wall: time.Now().Round(0)}, err
}

// Monotonic is the machine's monotonic clock.
func Monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// Now is the time since the clock was started.
func (c Clock) Now() time.Duration {
	now, err := Monotonic()
	if err != nil {
		panic(err) // it was read before, and it cannot cease to be there
	}
	return c.At(now)
}

// At is the time since the clock was started of a reading of the monotonic clock.
func (c Clock) At(monotonic time.Duration) time.Duration { return monotonic - c.start }

// AtWall is the time since the clock was started of a reading of the wall clock: as good as that clock is steady.
func (c Clock) AtWall(wall time.Time) time.Duration {
	return c.Now() - time.Since(wall.Round(0))
}
