// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"os"
	"strconv"
	"testing"
)

// A process is gone whatever has its number since: nothing, another process or a thread of one.
func TestWatchProcess_NumberTaken(t *testing.T) {
	self, err := startTime(os.Getpid())
	must(t, err)
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	thread := 0
	for _, e := range threads {
		if id, err := strconv.Atoi(e.Name()); err == nil && id != os.Getpid() {
			thread = id
		}
	}
	if thread == 0 {
		t.Fatal("this process has one thread only")
	}
	for what, id := range map[string]ProcessID{
		"nothing":         {PID: 1 << 22, Start: self}, // beyond the highest number there can be
		"another process": {PID: os.Getpid(), Start: self + 1},
		"a thread":        {PID: thread, Start: self},
	} {
		if _, err := watchProcess(id, nil); !errors.Is(err, errGone) {
			t.Errorf("%s has the number: got %v, want that the process is gone", what, err)
		}
	}
}
