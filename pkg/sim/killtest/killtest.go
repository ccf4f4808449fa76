// SPDX-License-Identifier: Apache-2.0

package killtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// environment is the variable that passes a Life to its process.
const environment = "CLEAVE_KILLTEST"

// Life is one run of a worker, which is a process that may be killed.
type Life struct {
	Worker string // one of those of Main
	Args   string // the worker's arguments; its directory, in a Scenario
	Seed   uint64
	KillAt int64 // the step at which it is killed; 0 for none
	steps  atomic.Int64
}

// Command returns the command of a process that calls the worker.
func (l *Life) Command() (*exec.Cmd, error) {
	data, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	command := exec.Command(os.Args[0]) //nolint:gosec // the test program itself
	command.Env = append(os.Environ(), environment+"="+string(data))
	return command, nil
}

// Step is called by the worker before and after each change. It does not return from the step at which the process is killed.
func (l *Life) Step(what string) {
	if l.steps.Add(1) != l.KillAt {
		return
	}
	fmt.Fprintln(os.Stdout, what) // the last line, which run returns
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// Main calls the worker of this process, if it is one, and then does not return. TestMain calls it first.
func Main(workers map[string]func(*Life) error) {
	data := os.Getenv(environment)
	if data == "" {
		return
	}
	l := &Life{}
	err := json.Unmarshal([]byte(data), l)
	if err == nil {
		err = workers[l.Worker](l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run runs the worker to its end. step is the one at which it was killed; empty if it was not.
func (l *Life) run() (step string, err error) {
	command, err := l.Command()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err = command.Run()
	said := strings.TrimSpace(out.String())
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return said[strings.LastIndex(said, "\n")+1:], nil
	}
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, said)
	}
	return "", nil
}

// Scenario kills a worker on many nodes, many times on each.
type Scenario struct {
	Worker string
	Lives  int // of the worker on each node; the last one is not killed
	Steps  int // among which it is killed
	// Kinds is the minimum number of kinds of steps at which it is killed, in a thousand runs.
	Kinds int
	// Begin sets up a node in a directory. after, unless it is nil, is called after each life, and checks or changes it.
	Begin func(dir string, random *rand.Rand) (after func(killed bool) error, err error)
}

// Run kills the worker a number of times; the seeds of the nodes are consecutive.
func (s *Scenario) Run(t *testing.T, kills int, seed uint64) {
	t.Helper()
	var next, killed atomic.Int64
	var mu sync.Mutex
	at := map[string]int{}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for killed.Load() < int64(kills) && !t.Failed() {
				seed := seed + uint64(next.Add(1)) - 1
				steps, err := s.node(t.TempDir(), seed)
				if err != nil {
					t.Errorf("seed %d (run with -kill-seed=%d -kills=1): %v", seed, seed, err)
				}
				killed.Add(int64(len(steps)))
				mu.Lock()
				for _, step := range steps {
					at[step]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var kinds []string
	for step := range at {
		kinds = append(kinds, step)
	}
	slices.Sort(kinds)
	for _, step := range kinds {
		t.Logf("%4d killed %s", at[step], step)
	}
	if kills >= 1000 && len(kinds) < s.Kinds {
		t.Errorf("%s was killed at %d kinds of steps only: does it report them?", s.Worker, len(kinds))
	}
}

// node runs all lives of one node. steps are those at which the worker was killed.
func (s *Scenario) node(dir string, seed uint64) (steps []string, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeated by its seed
	after, err := s.Begin(dir, random)
	if err != nil {
		return nil, err
	}
	for i := range s.Lives {
		l := Life{Worker: s.Worker, Args: dir, Seed: seed*1000 + uint64(i), KillAt: 1 + random.Int64N(int64(s.Steps))}
		if i == s.Lives-1 {
			l.KillAt = 0
		}
		step, err := l.run()
		if after != nil {
			err = errors.Join(err, after(step != ""))
		}
		if err != nil {
			truth, _ := os.ReadFile(truthFile(dir))
			return steps, fmt.Errorf("life %d, killed before %v: %w\n%s", i, steps, err, truth)
		}
		if step != "" {
			steps = append(steps, step)
		}
	}
	return steps, nil
}

func truthFile(dir string) string { return filepath.Join(dir, "truth.json") }

// ReadTruth reads the data against which a worker is checked, which outlives it.
func ReadTruth(dir string, truth any) error {
	data, err := os.ReadFile(truthFile(dir))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, truth)
}

// WriteTruth writes it. No worker is killed in between, as that happens only in Step.
func WriteTruth(dir string, truth any) error {
	data, err := json.Marshal(truth)
	if err != nil {
		return err
	}
	return os.WriteFile(truthFile(dir), data, 0o600)
}
