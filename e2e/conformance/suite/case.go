// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
)

// Result of a case.
type Result string

// Results.
const (
	Pass Result = "pass"
	Fail Result = "fail"
	// Skip means that the driver does not offer what the case is about, or that the suite was not given what it needs.
	Skip Result = "skip"
)

// Case is one rule for drivers.
type Case struct {
	// Name is subject and case, as in "prepare/idempotent".
	Name string
	// Rule is what a driver has to do.
	Rule string
	// Source says where Kubernetes asks for it.
	Source string

	// run returns what was seen, in a sentence: a note, an error, or skipped. A note is needed for a pass.
	run func(ctx context.Context, b *bench) (note string, err error)
}

// skipped is the error of a case that does not apply.
type skipped struct{ reason string }

func (s skipped) Error() string { return s.reason }

func skipf(format string, args ...any) error { return skipped{fmt.Sprintf(format, args...)} }

// judge says what a case ended with.
func judge(note string, err error) (Result, string) {
	if skip := (skipped{}); errors.As(err, &skip) {
		return Skip, skip.reason
	}
	if err != nil {
		return Fail, err.Error()
	}
	if note == "" {
		return Fail, "the case does not say what it saw: an error of the suite"
	}
	return Pass, note
}

// Cases are all cases, in the order in which they run.
func Cases() []Case {
	var all []Case
	for _, subject := range [][]Case{
		registrationCases, sliceCases, prepareCases, batchCases, unprepareCases, concurrencyCases, restartCases, adminCases, shareCases,
		taintCases, healthCases, statusCases, metadataCases,
	} {
		all = append(all, subject...)
	}
	return all
}
