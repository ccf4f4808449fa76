// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/conformance/driver"
	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// Config is what the suite needs to know of a driver and its node.
type Config struct {
	// Client has an administrator's access to the API server.
	Client kubernetes.Interface
	// Driver and Node are the names of what is tested.
	Driver, Node string
	// Classes are DeviceClasses of the driver. A case takes the first that has what it needs.
	Classes []string
	// Namespace is created for the suite, and removed.
	Namespace string
	// RegistryDir is the kubelet's plugins_registry on this machine; empty if the suite cannot reach it.
	RegistryDir string
	// Socket is the driver's own, in place of the one that it registers.
	Socket string
	// CDIDirs are the directories of CDI specs on this machine; none if the suite cannot reach them.
	CDIDirs []string
	// Restart restarts the driver's process; nil leaves out what needs it. It may return before the driver is ready.
	Restart func(context.Context) error
	// Damage makes the hardware of a device unhealthy and Repair undoes it; nil leaves out what needs it.
	Damage, Repair func(ctx context.Context, pool, device string) error
	// Timeout bounds each case, and its clean-up again.
	Timeout time.Duration
	// SettleTimeout is how long a case waits for what a driver does in its own time, such as publishing.
	SettleTimeout time.Duration
	// Only and Skip choose cases by name; nil for all and none.
	Only, Skip *regexp.Regexp
	// Progress is called with each result; nil for nobody.
	Progress func(CaseReport)
}

// ErrLeftBehind is wrapped when the suite could not remove what it made.
var ErrLeftBehind = errors.New("something of the suite may be left")

// Run runs the cases one after another. An error means that the report is not to be trusted: the suite could not begin, or
// could not clean up.
func Run(ctx context.Context, config Config) (*Report, error) {
	s := &session{
		Config:  config,
		cluster: &kube.Cluster{Client: config.Client, Namespace: config.Namespace, Node: config.Node, Driver: config.Driver},
		driver:  &driver.Driver{Name: config.Driver, RegistryDir: config.RegistryDir, Socket: config.Socket, CDIDirs: config.CDIDirs},
	}
	report, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range Cases() {
		if ctx.Err() != nil {
			break
		}
		if config.Only != nil && !config.Only.MatchString(c.Name) || config.Skip != nil && config.Skip.MatchString(c.Name) {
			continue
		}
		one := s.runCase(ctx, c)
		report.add(one)
		if config.Progress != nil {
			config.Progress(one)
		}
	}
	return report, errors.Join(ctx.Err(), s.end(ctx))
}

// session is one run of the suite.
type session struct {
	Config

	cluster *kube.Cluster
	driver  *driver.Driver
}

// begin checks what was given, removes what an interrupted run left, and creates the namespace.
func (s *session) begin(ctx context.Context) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if len(s.Classes) == 0 {
		return nil, errors.New("begin: no DeviceClass is given")
	}
	version, err := s.cluster.ServerVersion()
	if err != nil {
		return nil, err
	}
	if err := s.cluster.CheckNode(ctx); err != nil {
		return nil, err
	}
	for _, class := range s.Classes {
		if err := s.cluster.CheckClass(ctx, class); err != nil {
			return nil, err
		}
	}
	if err := s.removeLeftovers(ctx); err != nil {
		return nil, err
	}
	if err := s.cluster.CreateNamespace(ctx); err != nil {
		return nil, err
	}
	return &Report{Driver: s.Driver, Node: s.Node, Kubernetes: version, Cases: []CaseReport{}}, nil
}

// removeLeftovers releases the claims of an interrupted run, then deletes its namespace.
func (s *session) removeLeftovers(ctx context.Context) error {
	claims, err := s.cluster.Leftovers(ctx)
	if err != nil {
		return err
	}
	if len(claims) > 0 {
		b := s.newBench()
		for i := range claims {
			b.claims = append(b.claims, &claims[i])
		}
		if err := b.cleanUp(ctx); err != nil {
			return fmt.Errorf("clean up after an interrupted run: %w", err)
		}
	}
	return s.cluster.DeleteNamespace(ctx)
}

// end removes the namespace, also after an interrupt.
func (s *session) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	if err := s.removeLeftovers(ctx); err != nil {
		return fmt.Errorf("clean up namespace %s: %w: %w", s.Namespace, ErrLeftBehind, err)
	}
	return nil
}

// runCase runs a case and cleans up after it. What cannot be cleaned up fails a case that did not fail before.
func (s *session) runCase(ctx context.Context, c Case) CaseReport {
	b := s.newBench()
	began := time.Now()
	running, cancel := context.WithTimeout(ctx, s.Timeout)
	result, reason := judge(c.run(running, b))
	cancel()
	cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	if err := b.cleanUp(cleaning); err != nil && result != Fail {
		result, reason = Fail, "clean-up: "+err.Error()
	}
	return CaseReport{
		Name: c.Name, Rule: c.Rule, Source: c.Source, Result: result, Reason: oneLine(reason), Seconds: time.Since(began).Seconds(),
	}
}
