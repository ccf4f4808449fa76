// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// timeout bounds every test, and its clean-up once more. It is for a busy machine: a test that passes takes no longer for it. It is
// less than the plugin's interval for looking at all claims (--reconcile-every), which would mend what a test is to find.
const timeout = 4 * time.Minute

// space is the namespace of one test. Its methods, and those of what it holds, end the test where something is not as it
// has to be.
type space struct {
	*testing.T
	name string

	pods      pods
	published published
	plugin    plugin
	hardware  hardware
	events    events
}

// newSpace creates a namespace for a test. When the test ends, all in it is removed, and the GPUs have to be free.
func newSpace(t *testing.T) (context.Context, *space) {
	t.Helper()
	name := strings.ToLower(regexp.MustCompile(`[^0-9A-Za-z]+`).ReplaceAllString(strings.TrimPrefix(t.Name(), "Test"), "-"))
	name = name[:min(len(name), 60)]
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	s := &space{T: t, name: name}
	s.pods, s.published, s.plugin, s.hardware, s.events = pods{s}, published{s}, plugin{s}, hardware{s}, events{s}
	_, err := env.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
	atEnd(s.T, s.cleanUp)
	// The API server lets in no pod before.
	s.eventually(ctx, "ServiceAccount default of namespace "+name, func(ctx context.Context) (bool, string, error) {
		_, err := env.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, "not there", nil
		}
		return err == nil, "", err
	})
	return ctx, s
}

// atEnd cleans up after the test, with a time of its own.
func atEnd(t *testing.T, do func(context.Context)) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		do(ctx)
	})
}

// must ends the test if there is an error.
func (s *space) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// eventually waits until a condition holds.
func (s *space) eventually(ctx context.Context, what string, done func(context.Context) (ok bool, state string, err error)) {
	s.Helper()
	start := time.Now()
	s.must(workload.Until(ctx, what, done))
	s.logSlow(what, start)
}

// logSlow says what took long, for those who want a faster suite.
func (s *space) logSlow(what string, start time.Time) {
	s.Helper()
	if took := time.Since(start); took > 4*time.Second {
		s.Logf("waited %s for %s", took.Round(100*time.Millisecond), what)
	}
}

// cleanUp removes pods, then claims, and checks that nothing is allocated any more.
func (s *space) cleanUp(ctx context.Context) {
	if s.Failed() {
		s.Log(s.diagnosis(ctx))
	}
	if !env.node.Running() {
		s.plugin.start(ctx)
	}
	pods := env.kube.CoreV1().Pods(s.name)
	claims := env.kube.ResourceV1().ResourceClaims(s.name)
	s.must(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(env.client.WaitGone(ctx, s.name, ""))
	s.must(env.kube.ResourceV1().ResourceClaimTemplates(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.must(claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.eventually(ctx, "the claims to go", func(ctx context.Context) (bool, string, error) {
		list, err := claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprintf("%d claims", len(list.Items)), err
	})
	s.plugin.waitRecords(ctx, env.node)
	s.must(env.kube.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}))
}

// diagnosis is what a person wants to see of a test that failed.
func (s *space) diagnosis(ctx context.Context) string {
	var b strings.Builder
	if pods, err := env.kube.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range pods.Items {
			fmt.Fprintf(&b, "pod %s: %s\n", pods.Items[i].Name, workload.Describe(&pods.Items[i]))
		}
	}
	if events, err := env.kube.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{}); err == nil {
		for _, e := range events.Items {
			fmt.Fprintf(&b, "event on %s: %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	fmt.Fprintf(&b, "the plugin's log ends with:\n%s", env.node.LogTail(40))
	return b.String()
}

// create makes objects in the test's namespace.
func (s *space) create(ctx context.Context, objects ...runtime.Object) {
	s.Helper()
	s.must(workload.Create(ctx, env.kube, s.name, objects))
}

// createExample makes the objects of a file of deployments/examples.
func (s *space) createExample(ctx context.Context, name string) {
	s.Helper()
	s.must(env.client.CreateFile(ctx, s.name, filepath.Join(env.source, "deployments", "examples", name+".yaml")))
}
