// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

// downTimeout bounds what takes a cluster down after its tests.
const downTimeout = 5 * time.Minute

// Suite is the tests of a package that share a cluster, which no others use.
type Suite struct {
	// Variable of the environment is 1 where the tests have the cluster, On is what that is, for the message where they are skipped.
	Variable, On string
	// Options of the cluster. Its Source is found and its Output is that of the tests.
	Options cluster.Options
}

// Enabled reports whether the tests have the cluster.
func (s *Suite) Enabled() bool { return os.Getenv(s.Variable) == "1" }

// Run is what TestMain calls. setUp prepares what else the tests share. tearDown, which may be nil, undoes what taking the cluster down
// does not; it runs also where setUp failed. Run returns the exit status.
func (s *Suite) Run(m *testing.M, setUp func(context.Context, Client) error, tearDown func(context.Context) error) int {
	if !s.Enabled() {
		return m.Run()
	}
	return cluster.RunTests(m, func(ctx context.Context) (err error) {
		if s.Options.Source, err = cluster.FindSource(); err != nil {
			return err
		}
		s.Options.Output = os.Stdout
		if err := cluster.Reserve(ctx, s.Options.Dir, os.Stdout); err != nil {
			return err
		}
		client, err := Up(ctx, s.Options)
		if err != nil {
			return err
		}
		return setUp(ctx, client)
	}, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
		defer cancel()
		var err error
		if tearDown != nil {
			err = tearDown(ctx)
		}
		return errors.Join(err, cluster.Down(ctx, s.Options.Dir))
	})
}

// Bound bounds a test that needs the cluster, and skips it where there is none.
func (s *Suite) Bound(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if !s.Enabled() {
		t.Skipf("%s=1 runs this, as root, on %s", s.Variable, s.On)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}
