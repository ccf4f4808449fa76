// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"strconv"
)

const (
	// maxAgain is the number of failures up to which each is run again: more are no chance.
	maxAgain = 10
	// maxFlaky is how many flaky tests a run may have and pass.
	maxFlaky = 3
)

// flaky is a test that failed and then passed alone.
type flaky struct {
	failure
	// passed is the log of the second run.
	passed string
}

// again runs each failure once more, alone, and returns what passed then, and what did not.
func (r *runner) again(ctx context.Context) (chance []flaky, lasting []failure) {
	if len(r.failures) > maxAgain {
		return nil, r.failures
	}
	r.once = true
	for i, f := range r.failures {
		if f.final {
			lasting = append(lasting, f)
			continue
		}
		r.mu.Lock()
		r.say("once more, alone: %s", f)
		r.mu.Unlock()
		logs := filepath.Join(r.logs, "again", strconv.Itoa(i+1))
		packages := []string{f.pkg}
		tests := f.tests
		if len(tests) == 0 {
			tests = nil // all, as none is known
		}
		args, env := f.stage.goTest(r.root, packages, tests)
		found, err := r.goTest(ctx, f.stage, args, env, false, logs)
		if ctx.Err() != nil {
			return chance, append(lasting, r.failures[i:]...)
		}
		if err == nil && len(r.failed(f.stage, nil, found, logs)) == 0 && len(found) > 0 {
			chance = append(chance, flaky{f, filepath.Join(logs, "output.log")})
		} else {
			lasting = append(lasting, f)
		}
	}
	return chance, lasting
}
