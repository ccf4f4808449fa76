package v1alpha1

import (
	"errors"
	"strings"
	"unicode"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// Problems are things that are wrong, each of them one line of text that can be printed.
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

// ProblemsOf takes an error apart: its Problems, each with what wraps all of them in front of it, or the error alone.
func ProblemsOf(err error) Problems {
	var several Problems
	if err == nil || !errors.As(err, &several) {
		return asProblems(err)
	}
	front, ok := strings.CutSuffix(err.Error(), several.Error())
	if !ok || front == "" {
		return several
	}
	wrapped := make(Problems, 0, len(several))
	for _, one := range several {
		wrapped = append(wrapped, oneLine(front, one))
	}
	return wrapped
}

// asProblems takes aggregates apart and leaves out what is said twice.
func asProblems(err error) Problems {
	if err == nil {
		return nil
	}
	all := []error{err}
	if several := utilerrors.Aggregate(nil); errors.As(err, &several) {
		all = utilerrors.Flatten(several).Errors()
	}
	var problems Problems
	said := map[string]bool{}
	for _, one := range all {
		if one = oneLine("", one); !said[one.Error()] {
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

// oneLine is an error with something in front of it as one line that can be printed: the kubelet makes an Event of it,
// whose text must be valid UTF-8, and what is wrong is quoted from the input.
func oneLine(front string, err error) error {
	text := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(front+err.Error(), "\uFFFD"))
	return &lineError{strings.Join(strings.Fields(text), " "), err}
}
