// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// Holdings are what a node has for claims, by kind: the plugin's records, by whichever name, the specs for the container runtime,
// partitions, GPUs that only an MPS server can use, and what MPS runs.
func (b *Bed) Holdings(ctx context.Context, node int) (map[string][]string, error) {
	on, gpus := b.cluster.Nodes()[node], b.Nodes[node]
	kinds := map[string][]string{}
	for kind, pattern := range map[string]string{
		"records":   filepath.Join(b.cluster.PluginsDir(), records.SharedDir, records.ClaimsDir, "[^.]*.json"),
		"CDI specs": filepath.Join(b.cluster.CDIDir(), "gpu.*-claim_*"),
	} {
		found, err := filepath.Glob(on.HostPath(pattern))
		if err != nil {
			return nil, err
		}
		kinds[kind] = found
	}
	partitions, err := gpus.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range partitions {
		kinds["partitions"] = append(kinds["partitions"], fmt.Sprint(p))
	}
	shown, err := gpus.Sim(ctx, "show")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(shown) {
		if strings.Contains(line, "EXCLUSIVE") {
			kinds["compute modes"] = append(kinds["compute modes"], strings.TrimSpace(line))
		}
	}
	var running []process.Process
	err = on.Inside(func() (err error) {
		running, err = process.List() // of the node alone
		return err
	})
	for _, r := range running {
		if strings.Contains(r.Command, "nvidia-cuda-mps") && strings.Contains(r.Environment, "="+b.MPSDir) {
			kinds["MPS processes"] = append(kinds["MPS processes"], fmt.Sprintf("%d: %s", r.PID, r.Command))
		}
	}
	return kinds, err
}

// WaitHolds waits until a node has nothing for claims but partitions that others made.
func (b *Bed) WaitHolds(ctx context.Context, node int, partitions ...string) error {
	return workload.Until(ctx, fmt.Sprintf("nothing to be left on node %d", node), func(ctx context.Context) (bool, string, error) {
		kinds, err := b.Holdings(ctx, node)
		empty := err == nil && slices.Equal(kinds["partitions"], partitions)
		for kind, found := range kinds {
			empty = empty && (kind == "partitions" || len(found) == 0)
		}
		return empty, fmt.Sprint(kinds), err
	})
}
