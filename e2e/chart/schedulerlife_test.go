// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// schedulerTimeout bounds what schedulers need to start: a lease runs out in it.
const schedulerTimeout = 20 * time.Minute

// schedulerValues are those of a release with cleave-scheduler.
func schedulerValues(name string) string {
	return env.values(true) + fmt.Sprintf(`
scheduler:
  enabled: true
  name: %s
  logVerbosity: 4
  tolerations: [{operator: Exists}]
  env: [{name: KUBERNETES_SERVICE_HOST, value: "%s"}, {name: KUBERNETES_SERVICE_PORT, value: "%s"}]
`, name, cluster.PodGateway, env.api.Port)
}

// TestScheduler_OnCluster goes through the life of cleave-scheduler as a second scheduler, under the chart's ServiceAccount, and has
// it take the place of the first.
func TestScheduler_OnCluster(t *testing.T) {
	ctx := tests.Bound(t, schedulerTimeout)
	must(t, release.ImportScheduler(ctx, env.cluster, source))
	atEnd(t, uninstall)
	helmOn(t, schedulerValues(schedulerName), "install", "cleave", chartDir, "--create-namespace", "--wait", "--timeout", helmTimeout)
	must(t, env.client.WaitSlices(ctx, workload.Driver, nil))
	workload.RunSteps(t, schedulerTimeout, diagnosis, []workload.Step{
		{Name: "one of two replicas leads", Run: func(t *testing.T, ctx context.Context) { leader(t, ctx, namespace, schedulerName) }},
		{Name: "it may do what it has to, and nothing else", Run: schedulerRights},
		{Name: "examples", Run: schedulerExamples},
		{Name: "an unknown strategy is an Event", Run: unknownStrategy},
		{Name: "another goes on when the leader is killed", Run: leaderKilled},
		{Name: "metrics", Run: schedulerMetrics},
		{Name: "a typo in its arguments", Run: argumentTypo},
		{Name: "its log", Run: schedulerLogs},
		{Name: "in place of the first scheduler", Run: inPlaceOfFirst},
	})
}

// schedulerPods are the pods of the scheduler that are not about to go.
func schedulerPods(t *testing.T, ctx context.Context) []corev1.Pod {
	t.Helper()
	pods, err := podsOf(ctx, "scheduler")
	must(t, err)
	return slices.DeleteFunc(pods, goes)
}

// leader waits until a pod of the scheduler holds a lease, and returns it.
func leader(t *testing.T, ctx context.Context, leaseNamespace, lease string) (found corev1.Pod) {
	t.Helper()
	must(t, workload.Until(ctx, "a leader", func(ctx context.Context) (bool, string, error) {
		l, err := env.kube.CoordinationV1().Leases(leaseNamespace).Get(ctx, lease, metav1.GetOptions{})
		if err != nil || l.Spec.HolderIdentity == nil {
			return false, fmt.Sprint(err), nil
		}
		for _, p := range schedulerPods(t, ctx) {
			if strings.HasPrefix(*l.Spec.HolderIdentity, p.Name+"_") {
				found = p
				return true, "", nil
			}
		}
		return false, "held by " + *l.Spec.HolderIdentity, nil
	}))
	return found
}

// schedulerRights asks the API server what the account may do. That it may do enough, its log says in the end.
func schedulerRights(t *testing.T, ctx context.Context) {
	for _, bound := range []authorizationv1.ResourceAttributes{
		{Verb: "get", Resource: "secrets"}, {Verb: "list", Resource: "secrets", Namespace: namespace},
		{Verb: "get", Resource: "configmaps", Namespace: namespace},
		{Verb: "create", Resource: "pods"}, {Verb: "update", Resource: "pods"}, {Verb: "create", Resource: "pods", Subresource: "exec"},
		{Verb: "update", Resource: "nodes"}, {Verb: "patch", Resource: "nodes"}, {Verb: "delete", Resource: "nodes"},
		{Verb: "create", Resource: "serviceaccounts", Subresource: "token"}, {Verb: "impersonate", Resource: "users"},
		{Verb: "create", Group: resourceapi.GroupName, Resource: "resourceslices"}, {Verb: "update", Group: resourceapi.GroupName, Resource: "resourceslices"},
		{Verb: "create", Group: resourceapi.GroupName, Resource: "deviceclasses"}, {Verb: "update", Group: resourceapi.GroupName, Resource: "devicetaintrules"},
		{Verb: "create", Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, {Verb: "*", Group: "*", Resource: "*"},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Name: "another", Namespace: namespace},
		{Verb: "update", Group: "apps", Resource: "deployments", Namespace: namespace},
	} {
		if mayDo(t, ctx, schedulerName, bound) {
			t.Errorf("it may %+v", bound)
		}
	}
}

// schedulerExamples runs every example with schedulerName set, as the documentation says.
func schedulerExamples(t *testing.T, ctx context.Context) {
	for _, names := range rounds {
		var pods []*corev1.Pod
		for _, name := range names {
			if name == "quota" || name == "mig-mps-services" || slices.Contains(pending, name) {
				continue // no pods, or none that can run here
			}
			pods = append(pods, example(t, ctx, name, func(p *corev1.Pod) { p.Spec.SchedulerName = schedulerName })...)
		}
		for _, p := range pods {
			if by, _ := scheduledBy(t, ctx, p); by != schedulerName {
				t.Errorf("pod %s was scheduled by %s", p.Name, by)
			}
		}
		files := []string{"delete", "--wait=true", "--ignore-not-found"}
		for _, name := range names {
			files = append(files, "-f", filepath.Join(examplesDir, name+".yaml"))
		}
		kubectl(t, ctx, files...)
	}
}

// scheduledBy waits for the Event that says where a pod goes, and returns the scheduler's name and instance.
func scheduledBy(t *testing.T, ctx context.Context, pod *corev1.Pod) (name, instance string) {
	t.Helper()
	must(t, workload.Until(ctx, "the Event of pod "+pod.Name, func(ctx context.Context) (bool, string, error) {
		events, err := eventsOf(ctx, pod, "Scheduled")
		if err != nil || len(events) == 0 {
			return false, "none", err
		}
		name, instance = events[0].ReportingController, events[0].ReportingInstance
		return true, "", nil
	}))
	return name, instance
}

func unknownStrategy(t *testing.T, ctx context.Context) {
	pods := example(t, ctx, "one-gpu", func(p *corev1.Pod) {
		p.Spec.SchedulerName = schedulerName
		p.Annotations = map[string]string{"gpu.cleave.dev/placement": "tight"}
	})
	waitEvent(t, ctx, pods[0], "PlacementUnknown", "gpu.cleave.dev/placement", `"tight"`, "[pack spread]", `"pack"`)
	endPods(t, ctx, pods...)
}

// schedulerMetrics reads the metrics as Prometheus does, with the token of an account that may.
func schedulerMetrics(t *testing.T, ctx context.Context) {
	account := metav1.ObjectMeta{Name: "scraper", Namespace: demo}
	_, err := env.kube.CoreV1().ServiceAccounts(demo).Create(ctx, &corev1.ServiceAccount{ObjectMeta: account}, metav1.CreateOptions{})
	must(t, err)
	_, err = env.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:monitoring"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: demo}},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, env.kube.RbacV1().ClusterRoleBindings().Delete(context.Background(), "scraper", metav1.DeleteOptions{}))
		must(t, env.kube.CoreV1().ServiceAccounts(demo).Delete(context.Background(), "scraper", metav1.DeleteOptions{}))
	})
	answer, err := env.kube.CoreV1().ServiceAccounts(demo).CreateToken(ctx, "scraper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	leads := leader(t, ctx, namespace, schedulerName)
	must(t, workload.Until(ctx, "metrics to be refused to nobody", func(ctx context.Context) (bool, string, error) {
		status, _, err := scrape(ctx, &leads, "")
		if status == http.StatusOK {
			return false, "", errors.New("they are served")
		}
		return status == http.StatusForbidden, fmt.Sprintf("status %d, %v", status, err), nil
	}))
	series := []string{
		`cleave_scheduler_attempts_total{outcome="narrowed",strategy="pack"}`, "cleave_scheduler_nodes_considered_count",
		"cleave_scheduler_choice_duration_seconds_count", `cleave_scheduler_placement_lost_units_count{strategy="pack"}`,
	}
	// Another may lead by now: the series are those of the replica that has placed pods.
	must(t, workload.Until(ctx, "metrics", func(ctx context.Context) (bool, string, error) {
		var states []string
		for _, p := range schedulerPods(t, ctx) {
			status, text, err := scrape(ctx, &p, answer.Status.Token)
			lacks := slices.DeleteFunc(slices.Clone(series), func(s string) bool { return strings.Contains(text, s) })
			if len(lacks) == 0 {
				return true, "", nil
			}
			states = append(states, fmt.Sprintf("%s: status %d, no %q, %v", p.Name, status, lacks, err))
		}
		return false, strings.Join(states, "\n"), nil
	}))
}

// scrape reads the metrics of a scheduler's pod.
func scrape(ctx context.Context, pod *corev1.Pod, token string) (status int, text string, err error) {
	return process.Read(ctx, "https://"+net.JoinHostPort(pod.Status.PodIP, "10259")+"/metrics", token)
}

// argumentTypo edits the configuration by hand, past the chart's schema: the replica that starts with it says what is wrong,
// and the other goes on.
func argumentTypo(t *testing.T, ctx context.Context) {
	configs := env.kube.CoreV1().ConfigMaps(namespace)
	config, err := configs.Get(ctx, schedulerName, metav1.GetOptions{})
	must(t, err)
	good := config.Data["config.yaml"]
	config.Data["config.yaml"] = strings.Replace(good, "candidates:", "candidate:", 1)
	config, err = configs.Update(ctx, config, metav1.UpdateOptions{})
	must(t, err)
	leads := leader(t, ctx, namespace, schedulerName)
	replace := func() {
		for _, p := range schedulerPods(t, ctx) {
			if p.Name != leads.Name {
				must(t, env.kube.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
			}
		}
	}
	replace()
	must(t, workload.Until(ctx, "the new replica to say what is wrong", func(ctx context.Context) (bool, string, error) {
		all := ""
		for _, p := range schedulerPods(t, ctx) {
			log, _ := env.cluster.PodLogs(ctx, namespace, p.Name, "scheduler") // which appears with the container
			if p.Name != leads.Name {
				all += log
			}
		}
		ok := strings.Contains(all, "decode the arguments of GPUPacking") && strings.Contains(all, `unknown field \"candidate\"`)
		return ok, all[max(0, len(all)-1000):], nil
	}))
	kept, err := env.kube.CoreV1().Pods(namespace).Get(ctx, leads.Name, metav1.GetOptions{})
	must(t, err)
	// It ends by itself where it cannot renew its lease in time.
	ended := kept.Status.ContainerStatuses[0].RestartCount > leads.Status.ContainerStatuses[0].RestartCount
	if now := leader(t, ctx, namespace, schedulerName); now.Name != leads.Name && !ended {
		t.Errorf("%s leads, no longer %s", now.Name, leads.Name)
	}
	config.Data["config.yaml"] = good
	_, err = configs.Update(ctx, config, metav1.UpdateOptions{})
	must(t, err)
	replace()
	must(t, workload.Until(ctx, "both replicas to be ready", bothReady))
}

func bothReady(ctx context.Context) (bool, string, error) {
	d, err := env.kube.AppsV1().Deployments(namespace).Get(ctx, schedulerName, metav1.GetOptions{})
	if err != nil {
		return false, "", err
	}
	return d.Status.ReadyReplicas == 2 && d.Status.UpdatedReplicas == 2 && d.Status.Replicas == 2, fmt.Sprintf("%+v", d.Status), nil
}

// schedulerLogs: it was never refused anything.
func schedulerLogs(t *testing.T, ctx context.Context) {
	for _, p := range schedulerPods(t, ctx) {
		log, err := env.cluster.PodLogs(ctx, namespace, p.Name, "scheduler")
		must(t, err)
		for line := range strings.Lines(log) {
			for _, bad := range []string{"forbidden", "Unauthorized", "cannot list", "read-only file system", "permission denied"} {
				if strings.Contains(line, bad) {
					t.Errorf("the log of %s says %s", p.Name, line)
				}
			}
		}
	}
}
