// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/tools/repack"
)

// scattered is an application with so many pods on each node, in order. At least so many are to be available, if a budget says so, and
// those of one may not be restarted at all.
type scattered struct {
	name    string
	tier    workload.Tier
	on      []int
	least   int
	isNever bool
}

// standing are the applications that stay all the time, and late is one that comes when the load has gone.
var (
	standing = []scattered{
		{"mig", workload.Tiers[1], []int{2, 2, 2}, 5, false},
		{"timeslice", workload.Tiers[2], []int{1, 1, 1}, 2, false},
		{"mps", workload.Tiers[3], []int{0, 1, 0}, 0, false},
		{"frozen", small2g, []int{1, 0, 0}, 1, false},
		{"never", workload.Tiers[1], []int{1, 0, 0}, 0, true},
	}
	late = scattered{"late", workload.Tiers[3], []int{1, 1, 1}, 0, false}
)

// underLoad is how long pods come and go while others are restarted.
const underLoad = time.Minute

// repacked restarts pods by cleave repack, several times, while others of all tiers come and go. Budgets hold, who is not to be restarted
// is not, each repack ends or says why not, and the history of each node has nothing that must not have happened. Once the load has gone,
// what repack says it frees is free.
func repacked(t *testing.T, ctx context.Context) {
	if !env.hasScheduler() {
		t.Logf("cleave-scheduler does not run with Kubernetes %s", env.cluster.Version())
		return
	}
	histories := record(t, ctx)
	replicas, least := map[string]int{}, map[string]int{}
	for _, a := range standing {
		for _, n := range a.on {
			replicas[a.name] += n
		}
		if a.least > 0 {
			least[a.name] = a.least
		}
	}
	seen := newBudgets(replicas, least)
	end := seen.follow(t, ctx)
	defer end()
	scatter(t, ctx, standing...)
	never := podsOfApp(t, ctx, "never")
	isKept(t, advise(t, ctx), map[string]repack.Reason{"never": repack.DoNotDisrupt, "frozen": repack.Budget})
	load := startLoad(ctx)
	repacksUnderLoad(t, ctx, load)
	freesWhatItSays(t, ctx)
	load.leave(t, ctx)
	scatter(t, ctx, late)
	if steps := freesWhatItSays(t, ctx); steps == 0 {
		t.Error("pods with shares on all nodes are no reason to repack")
	}
	if now := podsOfApp(t, ctx, "never"); !slices.Equal(never, now) {
		t.Errorf("pods that are never to be restarted were %v and are %v", never, now)
	}
	end()
	for _, text := range seen.broken {
		t.Error(text)
	}
	isByRepack(t, ctx, seen)
	must(t, env.kube.PolicyV1().PodDisruptionBudgets(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	must(t, env.kube.AppsV1().Deployments(demo).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	nothingAllocated(t, ctx)
	histories.check(t)
}

// repacksUnderLoad repacks again and again while applications come and go.
func repacksUnderLoad(t *testing.T, ctx context.Context, load *load) {
	t.Helper()
	idle, ends := 0, map[string]int{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < underLoad; <-tick.C {
		out, err := applyRepack(ctx)
		endsOrSaysWhy(t, ctx, out, err)
		switch found := stopped.FindStringSubmatch(out); {
		case found != nil:
			ends[found[2]]++
		case err == nil && strings.Contains(out, "No restart of pods would free another one."):
			idle++
			continue
		default:
			ends["done"]++
		}
		t.Logf("under load: %v\n%s", err, out)
	}
	must(t, load.end())
	t.Logf("%d applications came, %d went, %d changed their size; repack had nothing to do %d times and otherwise ended so: %v",
		load.came, load.went, load.scaled, idle, ends)
	if load.came+load.went+load.scaled < 10 {
		t.Error("that is no load")
	}
}

// scatter creates applications, one node after the other, and their budgets.
func scatter(t *testing.T, ctx context.Context, apps ...scattered) {
	t.Helper()
	want := map[string]int32{}
	for i, p := range env.places {
		for _, other := range env.places {
			cordon(t, ctx, other, other.index != p.index)
		}
		for _, a := range apps {
			if a.on[i] == 0 {
				continue
			}
			if want[a.name] == 0 {
				d := app(a.name, a.tier, 0)
				if a.isNever {
					d.Spec.Template.Annotations = map[string]string{v1alpha1.RepackKey: v1alpha1.RepackNever}
				}
				must(t, createApp(ctx, d, a.tier))
			}
			want[a.name] += int32(a.on[i])
			kubectl(t, ctx, "", "scale", "deployment", a.name, fmt.Sprintf("--replicas=%d", want[a.name]))
		}
		must(t, settled(ctx))
	}
	for _, p := range env.places {
		cordon(t, ctx, p, false)
	}
	for _, a := range apps {
		if a.least == 0 {
			continue
		}
		_, err := env.kube.PolicyV1().PodDisruptionBudgets(demo).Create(ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: a.name}, Spec: policyv1.PodDisruptionBudgetSpec{
				MinAvailable: new(intstr.FromInt(a.least)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: a.name}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
		must(t, workload.Until(ctx, "the budget of "+a.name+" to be counted", func(ctx context.Context) (bool, string, error) {
			b, err := env.kube.PolicyV1().PodDisruptionBudgets(demo).Get(ctx, a.name, metav1.GetOptions{})
			return err == nil && b.Status.CurrentHealthy >= int32(a.least) && b.Status.ObservedGeneration == b.Generation, fmt.Sprint(b), err
		}))
	}
}

func cordon(t *testing.T, ctx context.Context, p place, on bool) {
	t.Helper()
	verb := "uncordon"
	if on {
		verb = "cordon"
	}
	_, err := env.client.Kubectl(ctx, "", verb, p.Name())
	must(t, err)
}

// podsOfApp are the UIDs of an application's pods, sorted.
func podsOfApp(t *testing.T, ctx context.Context, app string) (uids []string) {
	t.Helper()
	list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: appLabel + "=" + app})
	must(t, err)
	for i := range list.Items {
		uids = append(uids, string(list.Items[i].UID))
	}
	return slices.Sorted(slices.Values(uids))
}

// repackCommand is cleave repack with flags.
func repackCommand(ctx context.Context, flags ...string) *exec.Cmd {
	args := append([]string{"repack", "--kubeconfig", env.cluster.Kubeconfig()}, flags...)
	return exec.CommandContext(ctx, filepath.Join(env.release.Source, "bin", "cleave"), args...)
}

func applyRepack(ctx context.Context) (output string, err error) {
	out, err := repackCommand(ctx, "--apply", "--eviction-timeout=15s", "--replacement-timeout=1m").CombinedOutput()
	return string(out), err
}

// advise is what cleave repack would do.
func advise(t *testing.T, ctx context.Context) *repack.Advice {
	t.Helper()
	out, err := repackCommand(ctx, "-o", "json").Output()
	must(t, err)
	advice := &repack.Advice{}
	must(t, json.Unmarshal(out, advice))
	return advice
}

// isKept checks that an advice says why pods of applications stay.
func isKept(t *testing.T, advice *repack.Advice, want map[string]repack.Reason) {
	t.Helper()
	for app, reason := range want {
		if !slices.ContainsFunc(advice.Kept, func(k repack.Kept) bool { return strings.HasPrefix(k.Pod, app+"-") && k.Reason == reason }) {
			t.Errorf("the advice does not say %s of pods of %s: %+v", reason, app, advice.Kept)
		}
	}
}

// stopped is how a repack says why it goes no further.
var stopped = regexp.MustCompile(`stopped: (step \d+: )?(Changed|Elsewhere|Refused|Timeout): .+; run it again to go on`)

// endsOrSaysWhy checks that a repack has ended well or says why not, and left no taint.
func endsOrSaysWhy(t *testing.T, ctx context.Context, out string, err error) {
	t.Helper()
	exit := &exec.ExitError{}
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1 || !stopped.MatchString(out)) || err == nil && strings.Contains(out, "stopped:") {
		t.Errorf("got %v; output:\n%s", err, out)
	}
	nodes, err := env.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, n := range nodes.Items {
		if slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == v1alpha1.RepackKey }) {
			t.Errorf("node %s keeps the taint of the repack", n.Name)
		}
	}
}

// freesWhatItSays repacks until there is nothing to do. Nothing comes or goes meanwhile: each ends well, and has freed what it said. It
// returns how many steps there were.
func freesWhatItSays(t *testing.T, ctx context.Context) (steps int) {
	t.Helper()
	for most := 6; ; most-- {
		must(t, settled(ctx))
		advice := advise(t, ctx)
		if len(advice.Steps) == 0 {
			return steps
		}
		steps += len(advice.Steps)
		if most == 0 {
			t.Fatalf("there is always another step: %+v", advice)
		}
		out, err := applyRepack(ctx)
		t.Logf("%d GPUs are free and whole, %d are to be:\n%s", advice.WholeNow, advice.WholeThen, out)
		if err != nil {
			t.Errorf("%v; output:\n%s", err, out)
		}
		endsOrSaysWhy(t, ctx, out, err)
		if now := advise(t, ctx); now.WholeNow < advice.WholeThen {
			t.Errorf("%d GPUs are free and whole, %d were to be", now.WholeNow, advice.WholeThen)
		}
		pools := allocated(t, ctx)
		for _, step := range advice.Steps {
			for _, freed := range step.Frees {
				for _, device := range pools[freed.Node] {
					if err == nil && (device == freed.Name || strings.HasPrefix(device, freed.Name+"-")) {
						t.Errorf("%s of %s was to be free, and %s is allocated", freed.Name, freed.Node, device)
					}
				}
			}
		}
	}
}

// isByRepack checks that all evictions are those that repack has told of.
func isByRepack(t *testing.T, ctx context.Context, seen *budgets) {
	t.Helper()
	events, err := env.kube.EventsV1().Events(demo).List(ctx, metav1.ListOptions{FieldSelector: "reason=RepackEvicts"})
	must(t, err)
	told := map[string]bool{}
	for _, e := range events.Items {
		told[string(e.Regarding.UID)] = true
	}
	byApp := map[string]int{}
	for uid, p := range seen.evicted {
		byApp[p.Labels[appLabel]]++
		if !told[string(uid)] {
			t.Errorf("pod %s was evicted, and repack says nothing of it", p.Name)
		}
	}
	t.Logf("evictions by application: %v", byApp)
	if byApp["never"] > 0 || byApp["frozen"] > 0 || len(seen.evicted) < 4 || byApp["mig"]+byApp["timeslice"] < 2 {
		t.Errorf("evictions by application: %v; want 4 and more, two of them with budgets, none of never and frozen", byApp)
	}
}
