// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// The daemon's defaults of the second half: what a client has that does not say what it wants.
const (
	defaultCores, defaultUnits = 50, 4
	// raisedUnits is what a client asks for that wants more.
	raisedUnits = 8
)

// nobody is the user of programs that are not root's.
const nobody = 65534

// defaults shares a GPU through a daemon with lower defaults, and looks what they are worth.
func (s *sharing) defaults(ctx context.Context) {
	if !s.cudaWorks {
		return // the daemon alone was tried
	}
	var endpoint mps.Endpoint
	if s.check("mps", "daemon with defaults", func() (detail string, err error) {
		endpoint, err = s.ensure(ctx, claimOther, defaultCores, defaultUnits*s.unit)
		if err != nil {
			return "", err
		}
		return s.words(ctx, endpoint), nil
	}) {
		s.underDefaults(ctx, endpoint)
	}
	s.check("mps", "release again", func() (string, error) { return s.release(ctx, claimOther) })
}

func (s *sharing) underDefaults(ctx context.Context, endpoint mps.Endpoint) {
	given, err := s.clientOf(ctx, "given", claimOther, smallCores, 2*s.unit, endpoint)
	if err != nil {
		s.check("mps", "defaults hold", func() (string, error) { return "", err })
		return
	}
	const cores, memory = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	s.check("mps", "defaults hold", func() (string, error) {
		return s.withoutAmounts(ctx, given.with("without amounts", cores+"=", memory+"="))
	})
	s.note("mps", "raised limits", func() (string, error) {
		return s.raised(ctx, given.with("raised", cores+"=100", fmt.Sprintf("%s=0=%dM", memory, raisedUnits*s.unit>>20)))
	})
	// On drivers of 615 a client drops every limit by naming a GPU that it cannot see (docs/decisions/mps-defaults.md).
	s.note("mps", "limit of a second GPU", func() (string, error) {
		return s.raised(ctx, given.with("second", fmt.Sprintf("%s=0=%dM,1=%[2]dM", memory, raisedUnits*s.unit>>20)))
	})
	s.note("mps", "limit of an unknown GPU", func() (string, error) {
		const other = "GPU-00000000-0000-0000-0000-000000000000"
		return s.raised(ctx, given.with("unknown", fmt.Sprintf("%s=%s=%dM", memory, other, raisedUnits*s.unit>>20)))
	})
	s.check("mps", "like a container", func() (string, error) {
		c := given.with("like a container")
		c.apart = true
		return "a client with process ids and IPC of its own takes its memory and works", s.works(ctx, c)
	})
	s.check("mps", "another user", func() (string, error) {
		c := given.with("another user")
		c.apart, c.user = true, nobody
		return "a client of another user takes its memory and works", s.works(ctx, c)
	})
}

// withoutAmounts runs a client that says nothing, as one does that clears its environment.
func (s *sharing) withoutAmounts(ctx context.Context, c client) (string, error) {
	p, err := s.start(ctx, c)
	if err != nil {
		return "", err
	}
	defer p.end()
	detail, err := s.takeOver(ctx, p, defaultUnits*s.unit)
	if err != nil {
		return detail, err
	}
	detail += fmt.Sprintf("; it has %d of %d multiprocessors", p.reported(), s.cuda.multiprocessors)
	if !isPart(p.reported(), s.cuda.multiprocessors, defaultCores) {
		return detail, fmt.Errorf("the default is %d%%", defaultCores)
	}
	return detail, nil
}

// raised runs a client that asks for more than the daemon's defaults, and reports which of the two counts.
func (s *sharing) raised(ctx context.Context, c client) (string, error) {
	p, err := s.start(ctx, c)
	if err != nil {
		return "", err
	}
	defer p.end()
	a, err := p.take(ctx, (defaultUnits+2)*s.unit)
	if err != nil {
		return "", err
	}
	which := func(own bool) string {
		if own {
			return "its own counts"
		}
		return "the default counts"
	}
	return fmt.Sprintf("a client with %s over defaults of %d%% and %d MiB has %d of %d multiprocessors (%s) and got %d MiB (%s)",
		strings.Join(c.env, " "), defaultCores, defaultUnits*s.unit>>20, p.reported(), s.cuda.multiprocessors,
		which(!isPart(p.reported(), s.cuda.multiprocessors, defaultCores)), a.Held>>20, which(a.Held > defaultUnits*s.unit)), nil
}

// works runs a client that stays within its limits.
func (s *sharing) works(ctx context.Context, c client) error {
	p, err := s.start(ctx, c)
	if err != nil {
		return err
	}
	defer p.end()
	a, err := p.take(ctx, s.unit)
	if err == nil && a.Got != a.Asked {
		err = errors.New("it got less memory than its limit: " + a.Name)
	}
	if err == nil {
		_, err = p.work(ctx, rounds)
	}
	return err
}
