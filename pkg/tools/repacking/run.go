// SPDX-License-Identifier: Apache-2.0

package repacking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// Repacker takes steps.
type Repacker struct {
	Client kubernetes.Interface
	Driver string
	// Read reads the cluster.
	Read   func(context.Context) (*repack.Cluster, error)
	Limits Limits
	Permit Permit
	// Poll is how often a pod is looked at.
	Poll time.Duration
	// DryRun asks the API server what it would say, and changes nothing.
	DryRun bool
	// Say tells of what is done.
	Say func(format string, args ...any)
}

// Stop is why a repack has ended before its last step.
type Stop struct {
	Reason  Reason
	Message string
}

func (s *Stop) Error() string { return string(s.Reason) + ": " + s.Message }

// errTaintStays is returned where a node keeps the taint of a repack.
var errTaintStays = errors.New("the node takes no pods until the repack is run again")

// uncordonTimeout bounds the removal of a taint when all else ends.
const uncordonTimeout = 30 * time.Second

// Begin waits until no pod moves of those that do now, takes away the taints that an interrupted run has left, and plans.
func (r *Repacker) Begin(ctx context.Context) (*repack.Advice, error) {
	began := time.Now()
	for left := []string(nil); ; {
		cluster, err := r.Read(ctx)
		if err != nil {
			return nil, err
		}
		moving, tainted := cluster.Moving(time.Now().Add(-r.Limits.Replacement)), cluster.Tainted()
		if left == nil {
			left = moving // others come all the time
		}
		left = slices.DeleteFunc(left, func(pod string) bool { return !slices.Contains(moving, pod) })
		if len(left) == 0 || r.DryRun {
			if !r.DryRun {
				if err := r.untaint(ctx, tainted...); err != nil {
					return nil, err
				}
			}
			return cluster.Advise(ctx)
		}
		if time.Since(began) > r.Limits.Replacement {
			return nil, &Stop{Timeout, fmt.Sprintf("pods are evicted or scheduled, which takes more than %s: %v", r.Limits.Replacement, left)}
		}
		if err := r.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// pause waits for the next look.
func (r *Repacker) pause(ctx context.Context) error {
	timer := time.NewTimer(r.Poll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("repack: %w", ctx.Err())
	case <-timer.C:
		return nil
	}
}

// Apply takes the first steps of an advice, up to most of them if that is not 0. It returns how many are done, and a *Stop at the first
// surprise.
func (r *Repacker) Apply(ctx context.Context, advice *repack.Advice, most int) (done int, err error) {
	for i := range advice.Steps {
		if most > 0 && done == most {
			break
		}
		step := advice.Steps[i]
		if err := r.permitted(ctx, len(step.Pods)); err != nil {
			return done, err
		}
		r.Say("step %d of %d", i+1, len(advice.Steps))
		if err := r.step(ctx, step); err != nil {
			return done, fmt.Errorf("step %d: %w", i+1, err)
		}
		done++
		if !r.DryRun {
			r.Say("freed %s", step.Freed())
		}
	}
	return done, nil
}

// permitted asks the permit for evictions.
func (r *Repacker) permitted(ctx context.Context, pods int) error {
	if r.DryRun {
		return nil
	}
	lastHour := 0
	if r.Permit.PerHour > 0 {
		var err error
		if lastHour, err = r.evictions(ctx, time.Now().Add(-time.Hour)); err != nil {
			return err
		}
	}
	if why := r.Permit.Refuses(time.Now(), lastHour, pods); why != "" {
		return &Stop{Closed, why}
	}
	return nil
}

// step moves the pods of a step.
func (r *Repacker) step(ctx context.Context, rest repack.Step) (err error) {
	if rest.Cordon != "" {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uncordonTimeout)
			defer cancel()
			if failed := r.untaint(ctx, rest.Cordon); failed != nil {
				err = errors.Join(err, fmt.Errorf("%w: %w", errTaintStays, failed))
			}
		}()
		if err := r.taint(ctx, rest.Cordon); err != nil {
			return err
		}
	}
	for len(rest.Pods) > 0 {
		if r.DryRun {
			if err := r.evictDry(ctx, &rest.Pods[0]); err != nil {
				return err
			}
		} else {
			cluster, err := r.Read(ctx)
			if err != nil {
				return err
			}
			now, why := cluster.Recheck(ctx, rest)
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("repack: %w", err)
			}
			if why != "" {
				return &Stop{Changed, why}
			}
			rest = now
			if err := r.permitted(ctx, 1); err != nil {
				return err
			}
			if err := r.move(ctx, rest.Pods[0], rest.Freed()); err != nil {
				return err
			}
		}
		rest.Pods = rest.Pods[1:]
	}
	return nil
}

// move evicts a pod, and waits until its replacement runs.
func (r *Repacker) move(ctx context.Context, m repack.Move, frees string) error {
	w, err := r.watch(ctx, m)
	if err != nil {
		return err
	}
	told := ""
	for {
		seen, err := w.look(ctx)
		if err != nil {
			return err
		}
		d := w.Next(seen, r.Limits)
		if d.Message != "" && d.Message != told {
			told = d.Message
			r.Say("%s/%s: %s: %s", m.Namespace, m.Pod, d.Do, d.Message)
		}
		switch d.Do {
		case Evict:
			if why := r.Permit.Refuses(time.Now(), 0, 0); why != "" { // since a budget has refused
				return &Stop{Closed, why}
			}
			if err := w.evict(ctx, frees); err != nil {
				return err
			}
		case Done:
			return nil
		case Halt:
			r.tellStopped(ctx, &w.Attempt, d)
			return &Stop{d.Reason, d.Message}
		case Wait:
		}
		if err := r.pause(ctx); err != nil {
			return err
		}
	}
}
