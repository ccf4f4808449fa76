// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// releaseNamespace is that of the chart in these tests.
const releaseNamespace = "cleave-system"

// chartBed has what the chart gives the scheduler.
type chartBed struct{ priorityBed }

// install creates what the chart's scheduler has besides its pods, with a name that pods select.
func (b chartBed) install(name string) {
	b.t.Helper()
	b.applyChart("scheduler.enabled=true,scheduler.name="+name+",metrics.podMonitor.enabled=true", "scheduler", "metrics")
}

// applyChart creates the namespace of the release, and objects of some of the chart's templates.
func (b *bed) applyChart(values string, templates ...string) {
	b.t.Helper()
	must(b.t, errOf(b.kube.CoreV1().Namespaces().Create(b.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: releaseNamespace}}, metav1.CreateOptions{})))
	args := []string{"template", "cleave", "../../deployments/helm/cleave", "--namespace", releaseNamespace, "--kube-version", "1.37.2", "--set", values}
	for _, t := range templates {
		args = append(args, "--show-only", "templates/"+t+".yaml")
	}
	text, err := exec.CommandContext(b.t.Context(), bin("helm"), args...).Output()
	must(b.t, err)
	var objects [][]byte
	for _, object := range bytes.Split(text, []byte("\n---\n")) {
		if !bytes.Contains(object, []byte("kind: PodMonitor")) { // no operator defines it here
			objects = append(objects, object)
		}
	}
	client := workload.Client{Cluster: b.control, Kube: b.kube}
	_, err = client.Kubectl(b.t.Context(), string(bytes.Join(objects, []byte("\n---\n"))), "apply", "-f", "-")
	must(b.t, err)
}

func (b *bed) token(account string) string {
	b.t.Helper()
	token, err := b.kube.CoreV1().ServiceAccounts(releaseNamespace).CreateToken(b.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(b.t, err)
	return token.Status.Token
}

// kubeconfigOf is a kubeconfig file of an account of the release.
func (b *bed) kubeconfigOf(account string) string {
	b.t.Helper()
	access, err := clientcmd.LoadFromFile(b.kubeconfig)
	must(b.t, err)
	user := access.Contexts[access.CurrentContext].AuthInfo
	access.AuthInfos = map[string]*clientcmdapi.AuthInfo{user: {Token: b.token(account)}}
	kubeconfig := filepath.Join(b.dir, account+".kubeconfig")
	must(b.t, clientcmd.WriteToFile(*access, kubeconfig))
	return kubeconfig
}

// startInstalled starts cleave-scheduler with the configuration that the chart has made, as its account.
func (b chartBed) startInstalled() {
	b.t.Helper()
	kubeconfig := b.kubeconfigOf("cleave-scheduler")
	file, err := b.kube.CoreV1().ConfigMaps(releaseNamespace).Get(b.t.Context(), "cleave-scheduler", metav1.GetOptions{})
	must(b.t, err)
	var config map[string]any
	must(b.t, yaml.UnmarshalStrict([]byte(file.Data["config.yaml"]), &config))
	config["clientConnection"].(map[string]any)["kubeconfig"] = kubeconfig // in a pod, that of the account
	data, err := yaml.Marshal(config)
	must(b.t, err)
	path := filepath.Join(b.dir, "scheduler.yaml")
	must(b.t, os.WriteFile(path, data, 0o600))
	b.start(bin("cleave-scheduler"), "--config="+path, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
}

// may says which verbs the chart's account has on a resource of a group, by name, or on any.
func (b chartBed) may(namespace, resource, name string) (verbs []string) {
	b.t.Helper()
	for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
		review, err := b.kube.AuthorizationV1().SubjectAccessReviews().Create(b.t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + releaseNamespace + ":cleave-scheduler",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: namespace, Verb: verb, Group: "coordination.k8s.io", Resource: resource, Name: name,
				},
			},
		}, metav1.CreateOptions{})
		must(b.t, err)
		if review.Status.Allowed {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// metrics asks the scheduler for its metrics.
func (b chartBed) metrics(token string) (status int, body string) {
	b.t.Helper()
	status, body, err := process.Read(b.t.Context(), fmt.Sprintf("https://127.0.0.1:%d/metrics", b.port), token)
	must(b.t, err)
	return status, body
}

// TestRoles: with the chart's roles the scheduler lacks no right: it schedules claims and extended resources, evicts, and has its lease. It
// has no right on leases but that. Prometheus' account reads its metrics, and others do not.
func TestRoles(t *testing.T) {
	for name, lease := range map[string]string{"cleave-scheduler": releaseNamespace + "/cleave-scheduler", "default-scheduler": "kube-system/kube-scheduler"} {
		t.Run(name, func(t *testing.T) {
			b := chartBed{newPriorityBed(t, "n1", "n2")}
			b.install(name)
			b.startInstalled()
			b.addPods("low", "gpu.cleave.dev", 15, priority("low"), graceful)
			pod := podWith()
			pod.Name = "extended"
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
			must(t, errOf(b.kube.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})))
			b.scheduled(16)
			b.addPods("high", "gpu.cleave.dev", 1, priority("high"))
			b.ending(1)
			refused(b.bed, "cleave-scheduler.log")
			b.checkLeases(lease)
			b.checkMetrics()
		})
	}
}

// checkLeases compares the rights on leases.
func (b chartBed) checkLeases(own string) {
	b.t.Helper()
	got := map[string][]string{}
	for _, lease := range []string{releaseNamespace + "/cleave-scheduler", "kube-system/kube-scheduler", "kube-system/other", "default/other"} {
		space, name, _ := strings.Cut(lease, "/")
		got[lease] = b.may(space, "leases", name)
		if verbs := b.may(space, "leasecandidates", name); len(verbs) > 0 {
			b.t.Errorf("it may %v leasecandidates of %s", verbs, space)
		}
	}
	// Creating cannot be limited to a name.
	want := map[string][]string{}
	for _, lease := range slices.Sorted(maps.Keys(got)) {
		want[lease] = nil
		if space, _, _ := strings.Cut(own, "/"); strings.HasPrefix(lease, space+"/") {
			want[lease] = []string{"create"}
		}
	}
	want[own] = []string{"get", "create", "update"}
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("rights on leases (-want +got):\n%s", diff)
	}
}

// checkMetrics reads what the chart's alerts are about.
func (b chartBed) checkMetrics() {
	b.t.Helper()
	token := b.token("cleave-scheduler-metrics")
	must(b.t, workload.Until(b.t.Context(), "metrics of the scheduler", func(context.Context) (bool, string, error) {
		status, body := b.metrics(token)
		for _, want := range []string{`leader_election_master_status{name="kube-scheduler"} 1`, `cleave_scheduler_attempts_total{outcome="narrowed",strategy="pack"}`} {
			if !strings.Contains(body, want) {
				return false, fmt.Sprintf("status %d without %s", status, want), nil
			}
		}
		return status == http.StatusOK, http.StatusText(status), nil
	}))
	for who, token := range map[string]string{"nobody": "", "the scheduler": b.token("cleave-scheduler")} {
		if status, _ := b.metrics(token); status != http.StatusForbidden {
			b.t.Errorf("%s gets status %d, want %d", who, status, http.StatusForbidden)
		}
	}
}
