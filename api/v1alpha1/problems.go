// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"strings"
	"unicode"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Problems are errors, each in one printable line.
type Problems []error

// Error joins them to one line.
func (p Problems) Error() string {
	texts := make([]string, 0, len(p))
	for _, err := range p {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

// Unwrap lists them.
func (p Problems) Unwrap() []error { return p }

// ProblemsOf splits an error into its Problems or other aggregated errors, each prefixed with the text that wraps all of them, or
// returns the error alone. Duplicates are left out.
func ProblemsOf(err error) Problems {
	if err == nil {
		return nil
	}
	front, all := "", []error{err}
	several, aggregate := Problems(nil), utilerrors.Aggregate(nil)
	switch {
	case errors.As(err, &several):
		if before, ok := strings.CutSuffix(err.Error(), several.Error()); ok {
			front, all = before, several
		}
	case errors.As(err, &aggregate):
		if before, ok := strings.CutSuffix(err.Error(), aggregate.Error()); ok {
			front, all = before, utilerrors.Flatten(aggregate).Errors()
		}
	}
	var problems Problems
	said := map[string]bool{}
	for _, one := range all {
		if one = oneLine(front, one); !said[one.Error()] {
			said[one.Error()] = true
			problems = append(problems, one)
		}
	}
	return problems
}

// lineError is an error whose text is one line.
type lineError struct {
	text string
	err  error
}

func (e *lineError) Error() string { return e.text }
func (e *lineError) Unwrap() error { return e.err }

// oneLine formats an error with a prefix as one printable line: the kubelet turns it into an Event, whose text must be valid UTF-8,
// but errors quote the input.
func oneLine(front string, err error) error {
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(front+err.Error(), "\uFFFD"))
	return &lineError{strings.Join(strings.Fields(text), " "), err}
}
