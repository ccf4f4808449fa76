// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// upgradeTimeout bounds an upgrade and its rollback.
const upgradeTimeout = 20 * time.Minute

// TestRelease_UpgradeAndRollback upgrades from the release before to this one and rolls back, while pods of each tier run:
// none of them notices, each release reads the other's records, and all is given back at the end.
func TestRelease_UpgradeAndRollback(t *testing.T) {
	ctx := tests.Bound(t, upgradeTimeout)
	havePrevious(t)
	atEnd(t, emptyDemo, uninstall)
	installPrevious(t, ctx, env.values(true))
	before := runTiers(t, ctx, "before")

	helmOn(t, env.values(true), "upgrade", "cleave", chartDir, "--wait", "--timeout", helmTimeout)
	runsOnly(t, ctx, "e2e")
	sameContainers(t, ctx, before...)
	endPods(t, ctx, before[0], before[1])
	after := runTiers(t, ctx, "after")
	writtenLater(t, after[2])

	helmOn(t, "", "rollback", "cleave", "1", "--wait", "--timeout", helmTimeout)
	runsOnly(t, ctx, release.PreviousTag)
	sameContainers(t, ctx, slices.Concat(before[2:], after)...)
	endPods(t, ctx, slices.Concat(before[2:], after)...)
	endPods(t, ctx, runTiers(t, ctx, "back")...)

	// An upgrade leaves the supervisor of MPS alone until its pod is deleted, and so does the way back.
	helmOn(t, env.values(true), "upgrade", "cleave", chartDir, "--wait", "--timeout", helmTimeout)
	runsOnly(t, ctx, "e2e")
	renewSupervisor(t, ctx, "e2e")
	endPods(t, ctx, runTiers(t, ctx, "renewed")...)
	helmOn(t, "", "rollback", "cleave", "1", "--wait", "--timeout", helmTimeout)
	runsOnly(t, ctx, release.PreviousTag)
	endPods(t, ctx, runTiers(t, ctx, "mixed")...)
	must(t, workload.Until(ctx, "all records to go", func(context.Context) (bool, string, error) {
		left, err := filepath.Glob(filepath.Join(claimsDir(), "*.json"))
		return len(left) == 0, strings.Join(left, " "), err
	}))
	nothingCorrupt(t)
}

// havePrevious skips a test where the release before this one is not built.
func havePrevious(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(os.Getenv(release.Previous)); err != nil { // a shallow clone does not have it
		t.Skipf("make previous builds the release that this upgrades, and make test-all names it in %s: %v", release.Previous, err)
	}
}

// installPrevious installs the release before this one, and waits until it offers GPUs.
func installPrevious(t *testing.T, ctx context.Context, values string) {
	t.Helper()
	previous := os.Getenv(release.Previous)
	must(t, release.ImportPrevious(ctx, env.cluster, previous))
	helmOn(t, values, "install", "cleave", release.Chart(previous), "--create-namespace", "--set", "image.tag="+release.PreviousTag,
		"--wait", "--timeout", helmTimeout)
	runsOnly(t, ctx, release.PreviousTag)
	must(t, env.client.WaitSlices(ctx, workload.Driver, nil))
}

// runsOnly waits until one plugin runs, of an image with a tag.
func runsOnly(t *testing.T, ctx context.Context, tag string) {
	t.Helper()
	onlyPod(t, ctx, "plugin", ready, ofTag(tag))
	nothingCorrupt(t)
}

// renewSupervisor deletes the supervisor's pod, and waits until one of an image with a tag runs.
func renewSupervisor(t *testing.T, ctx context.Context, tag string) {
	t.Helper()
	old := podOf(t, ctx, "mps")
	if strings.HasSuffix(old.Spec.Containers[0].Image, ":"+tag) {
		t.Errorf("the supervisor was replaced by itself: %s", workload.Describe(old))
	}
	must(t, env.kube.CoreV1().Pods(namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}))
	onlyPod(t, ctx, "mps", otherThan(old), ready, ofTag(tag))
}

// runTiers runs a pod of each tier, in their order.
func runTiers(t *testing.T, ctx context.Context, round string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, tier := range workload.Tiers {
		name := round + "-" + tier.Type
		create(t, ctx, tier.Template(name), tier.Pod(name, name))
		running := runs(t, ctx, name)
		if tier.Type == "mps" {
			served(t, ctx, name)
		} else if seen, err := env.client.Look(ctx, demo, name, "main"); err != nil || len(seen.GPUNodes()) != 1 {
			t.Errorf("pod %s sees %v, want one GPU: %v", name, seen.DeviceNodes, err)
		}
		pods = append(pods, running)
	}
	return pods
}

// sameContainers checks that the containers of pods are as they were.
func sameContainers(t *testing.T, ctx context.Context, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		diff, err := env.client.Undisturbed(ctx, pod)
		must(t, err)
		if diff != "" {
			t.Errorf("containers of pod %s (-before +now):\n%s", pod.Name, diff)
		}
	}
}

func claimsDir() string {
	return filepath.Join(env.cluster.PluginsDir(), records.SharedDir, records.ClaimsDir)
}

// nothingCorrupt checks that no release set aside what another wrote.
func nothingCorrupt(t *testing.T) {
	t.Helper()
	for _, dir := range []string{records.SharedDir + "/claims", records.SharedDir + "/layouts", records.SharedDir + "/modes", workload.Driver + "/status-notes"} {
		corrupt, err := filepath.Glob(filepath.Join(env.cluster.PluginsDir(), dir, "corrupt", "*"))
		must(t, err)
		for _, path := range corrupt {
			data, err := os.ReadFile(path)
			t.Errorf("%s was set aside: %s: %v", path, data, err)
		}
	}
}

// writtenLater makes the record of a pod's claim one that a later release wrote, which says that this one can read it.
func writtenLater(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	claim, err := env.kube.ResourceV1().ResourceClaims(demo).Get(t.Context(), *pod.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
	must(t, err)
	path := filepath.Join(claimsDir(), string(claim.UID)+".json")
	data := readFile(t, path)
	var record map[string]any
	must(t, json.Unmarshal(data, &record))
	record["readableFrom"] = record["format"]
	record["format"] = record["format"].(float64) + 1
	record["writtenByALaterRelease"] = map[string]any{"of": []any{"what", "nobody", "knows"}}
	data, err = json.Marshal(record)
	must(t, err)
	must(t, os.WriteFile(path+".new", data, 0o600))
	must(t, os.Rename(path+".new", path))
}
