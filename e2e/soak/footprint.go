// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
)

// leakTimeout bounds the time until what claims had is gone, after the last pod.
const leakTimeout = time.Minute

// footprint lists all that there is on the node because of Cleave, and of claims in the API server, sorted: files, sockets,
// mounts, processes, partitions and other settings of the GPUs, devices with their taints, claims. Before the first pod and
// after the last it has to be the same.
func (b *bed) footprint(ctx context.Context) ([]string, error) {
	var all []string
	for _, list := range []func(context.Context) ([]string, error){b.files, b.mounts, b.processes, b.hardware, b.objects} {
		some, err := list(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	slices.Sort(all)
	return all, nil
}

const (
	// mostUnfinished bounds the temporary files of plugins that were killed while they wrote. One that starts ten minutes later deletes
	// them (Sweep of pkg/domain/store).
	mostUnfinished = 20
	// supervisorEvents is where the supervisor keeps what the plugin has not read yet; the file stays.
	supervisorEvents = "events.json"
)

// unfinished are the names of temporary files of records.
var unfinished = regexp.MustCompile(`^\..+\.json\.[0-9]+$`)

// files are all files and directories of Cleave's.
func (b *bed) files(ctx context.Context) ([]string, error) {
	uids := map[string]bool{}
	pods, err := b.releasePods(ctx, "plugin")
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		uids[string(p.UID)] = true
	}
	var all []string
	left := 0
	for _, dir := range []string{b.cluster.PluginsDir(), b.cluster.RegistryDir(), b.registry, b.cluster.CDIDir(), b.MPSDir} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil // removed since it was listed
			}
			if err != nil {
				return err
			}
			if filepath.Base(filepath.Dir(path)) == "corrupt" {
				return nil // a record that was set aside for people to look at
			}
			if unfinished.MatchString(e.Name()) {
				left++
				return nil
			}
			for uid := range uids {
				path = strings.ReplaceAll(path, uid, "POD")
			}
			if path != filepath.Join(b.MPSDir, supervisorEvents) {
				all = append(all, e.Type().String()[:1]+" "+path)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the files in %s: %w", dir, err)
		}
	}
	if left > mostUnfinished {
		all = append(all, fmt.Sprintf("%d temporary files of records", left))
	}
	return all, nil
}

// mounts are those of the host in the directories of Cleave's.
func (b *bed) mounts(context.Context) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	dirs := []string{b.cluster.PluginsDir(), b.cluster.CDIDir(), b.MPSDir, b.Node.Root()}
	var all []string
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		within := func(dir string) bool { return strings.HasPrefix(fields[4]+"/", dir+"/") }
		if len(fields) > 4 && slices.ContainsFunc(dirs, within) {
			all = append(all, "mount "+fields[4])
		}
	}
	return all, nil
}

// processes of Cleave, by name: their numbers change.
func (b *bed) processes(context.Context) ([]string, error) {
	var all []string
	for _, p := range []program{pluginProgram, supervisorProgram, daemonProgram} {
		list, err := b.running(p)
		if err != nil {
			return nil, err
		}
		for _, q := range list {
			all = append(all, "process "+strings.Join(strings.Fields(q.Command)[:min(2, len(strings.Fields(q.Command)))], " "))
		}
	}
	if b.cgroups == "" {
		return all, nil
	}
	groups, err := filepath.Glob(filepath.Join(b.cgroups, serverGroups, "*"))
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if info, err := os.Stat(g); err == nil && info.IsDir() {
			all = append(all, "cgroup "+g)
		}
	}
	return all, nil
}

// hardware is what GPUs have of claims: partitions, compute modes, intervals of time slices.
func (b *bed) hardware(ctx context.Context) ([]string, error) {
	partitions, err := b.Node.Sim(ctx, "mig", "list")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(partitions) {
		if fields := strings.Fields(line); len(fields) == 6 && strings.HasPrefix(fields[5], "MIG-") { // GPU GI CI PROFILE PLACEMENT UUID
			all = append(all, "partition "+strings.Join(fields, " "))
		}
	}
	shown, err := b.Node.Sim(ctx, "show")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(shown) {
		if strings.Contains(line, "EXCLUSIVE") || strings.Contains(line, "time slice") {
			all = append(all, "setting "+strings.TrimSpace(line))
		}
	}
	return all, nil
}

// objects are devices with all their taints, also those of what somebody left on them, and claims.
func (b *bed) objects(ctx context.Context) ([]string, error) {
	pool, err := b.pool(ctx)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, d := range namesOf(pool) {
		all = append(all, "device "+d)
	}
	claims, err := b.kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	for _, c := range claims.Items {
		all = append(all, "claim "+c.Namespace+"/"+c.Name)
	}
	return all, nil
}

// leaks are what differs from a footprint, once nothing does or leakTimeout is over.
func (b *bed) leaks(ctx context.Context, before []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, leakTimeout)
	defer cancel()
	var left []string
	err := workload.Until(ctx, "nothing to be left", func(ctx context.Context) (bool, string, error) {
		now, err := b.footprint(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // it is looked again
		}
		left = changes(before, now)
		return len(left) == 0, fmt.Sprintf("%d things", len(left)), nil
	})
	if err != nil && len(left) == 0 {
		return nil, fmt.Errorf("look for what is left: %w", err)
	}
	return left, nil
}

// changes are what is there besides, with a +, and what is missing, with a -. What is there several times counts each time.
func changes(before, now []string) []string {
	counts := map[string]int{}
	for _, s := range now {
		counts[s]++
	}
	for _, s := range before {
		counts[s]--
	}
	list := []string{}
	for s, n := range counts {
		for range max(n, 0) {
			list = append(list, "+ "+s)
		}
		for range max(-n, 0) {
			list = append(list, "- "+s)
		}
	}
	slices.Sort(list)
	return list
}
