// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// plugin is the plugin process of the cluster's node, its policies, metrics and claim records.
type plugin struct{ *space }

// labelNode sets a label of the cluster's node, or removes it.
func (s plugin) labelNode(ctx context.Context, key string, value *string) {
	s.Helper()
	s.must(env.client.LabelNode(ctx, env.cluster.NodeName(), key, value))
}

// waitReadiness waits until /readyz says something, or nothing where that is empty.
func (s plugin) waitReadiness(ctx context.Context, want string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("the plugin to say %q", want), func(ctx context.Context) (bool, string, error) {
		err := env.node.Readiness(ctx)
		if want == "" {
			return err == nil, fmt.Sprint(err), nil
		}
		return err != nil && strings.Contains(err.Error(), want), fmt.Sprint(err), nil
	})
}

// checkMetrics compares metrics of the plugin.
func (s plugin) checkMetrics(ctx context.Context, want map[string]string) {
	s.Helper()
	metrics, err := env.node.Metrics(ctx)
	s.must(err)
	for name, value := range want {
		if metrics[name] != value {
			s.Errorf("metric %s is %q, want %s", name, metrics[name], value)
		}
	}
}

// claimSpec reads the CDI spec of a claim.
func (s plugin) claimSpec(dir, uid string) cdispecs.Spec {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "gpu.cleave.dev-claim_"+uid+".json"))
	s.must(err)
	var spec cdispecs.Spec
	s.must(json.Unmarshal(data, &spec))
	return spec
}

// selectPolicy sets the label that picks the node's policy.
func (s plugin) selectPolicy(ctx context.Context, policy string) {
	s.Helper()
	s.labelNode(ctx, v1alpha1.PolicyLabel, &policy)
}

// usePolicies starts the plugin of the cluster's node with a directory of policies, for as long as the test runs.
func (s plugin) usePolicies(ctx context.Context, label string, policies map[string]string) (dir string) {
	s.Helper()
	dir = s.TempDir()
	for name, rules := range policies {
		s.writePolicy(dir, name, rules)
	}
	s.restart(ctx, "--policy", dir)
	atEnd(s.T, func(ctx context.Context) {
		s.labelNode(ctx, v1alpha1.PolicyLabel, nil)
		s.restart(ctx)
	})
	s.selectPolicy(ctx, label)
	return dir
}

func (s plugin) restart(ctx context.Context, flags ...string) {
	s.Helper()
	s.must(env.node.Stop())
	env.node.SetFlags(flags...)
	s.start(ctx)
}

// writePolicy writes a policy's file, as an editor that replaces it.
func (s plugin) writePolicy(dir, name, rules string) {
	s.Helper()
	path := filepath.Join(dir, name+".yaml")
	s.must(os.WriteFile(path+"~", []byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules: "+rules+"\n"), 0o600))
	s.must(os.Rename(path+"~", path))
}

// waitMetric waits until a metric has a value; "" until it is not there.
func (s plugin) waitMetric(ctx context.Context, n *node.Node, name, value string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("metric %s to be %q", name, value), func(ctx context.Context) (bool, string, error) {
		all, err := n.Metrics(ctx)
		return err == nil && all[name] == value, all[name], err
	})
}

// checkRecords checks that the plugin's records are those of all claims that are allocated and in use, device by
// device. It waits for that: kube-controller-manager takes its time to say that a claim is not in use any more.
func (s plugin) checkRecords(ctx context.Context) {
	s.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // well before the plugin's own look at all claims would mend what is wrong
	defer cancel()
	s.eventually(ctx, "the records to be those of the claims in use", func(ctx context.Context) (bool, string, error) {
		list, err := env.kube.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		all, err := readRecords(env.node)
		if err != nil {
			return false, "", err
		}
		want, got := map[string][]string{}, map[string][]string{}
		for _, c := range list.Items {
			if c.Status.Allocation == nil || len(c.Status.ReservedFor) == 0 {
				continue
			}
			for _, r := range c.Status.Allocation.Devices.Results {
				want[string(c.UID)] = append(want[string(c.UID)], r.Device)
			}
		}
		for uid, r := range all {
			for _, d := range r.Devices {
				got[uid] = append(got[uid], d.Device)
			}
		}
		diff := cmp.Diff(want, got)
		return diff == "", "devices by claim (-API server +records):\n" + diff, nil
	})
}

// waitRecords waits until the claims of the test's namespace that a node has records of are these.
func (s plugin) waitRecords(ctx context.Context, n *node.Node, claims ...string) {
	s.Helper()
	slices.Sort(claims)
	s.eventually(ctx, fmt.Sprintf("the plugin to hold for namespace %s the claims %v and no others", s.name, claims), func(context.Context) (bool, string, error) {
		have, err := readRecords(n)
		if err != nil {
			return false, "", err
		}
		maps.DeleteFunc(have, func(_ string, r *records.Record) bool { return r.Claim.Namespace != s.name })
		var names []string
		for _, r := range have {
			names = append(names, r.Claim.Name)
		}
		slices.Sort(names)
		return slices.Equal(names, claims), fmt.Sprintf("%v", names), nil
	})
}

// start starts the plugin of the cluster's node again and waits until it is ready.
func (s plugin) start(ctx context.Context) {
	s.Helper()
	s.must(env.node.Start(ctx))
	s.must(env.node.WaitReady(ctx))
}

// readRecords reads the records of a node, by claim UID. One that is corrupt is passed over.
func readRecords(n *node.Node) (map[string]*records.Record, error) {
	entries, err := os.ReadDir(n.Records())
	if err != nil {
		return nil, fmt.Errorf("read the plugin's records: %w", err)
	}
	found := map[string]*records.Record{}
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(n.Records(), e.Name()))
		if os.IsNotExist(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return nil, fmt.Errorf("read the plugin's records: %w", err)
		}
		if r, err := records.Decode(data); err == nil {
			found[uid] = r
		}
	}
	return found, nil
}
