// SPDX-License-Identifier: Apache-2.0

// Command demo runs Cleave's main job on this machine: a local Kubernetes, a simulated HGX H100 node, Cleave from its
// Helm chart, and pods that get GPUs, partitions and shares. It ends in a table of what each pod got and sees.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	model     = "hgx-h100"
	namespace = "default"
	// timeout bounds every wait of the demo after the cluster is up.
	timeout = 5 * time.Minute
)

// examples are the pods of the demo, by name; each is a file of deployments/examples.
var examples = []string{"one-gpu", "four-gpus", "mig-extended-resource", "timeslice-four-notebooks", "mps-two-services"}

func main() {
	source := flag.String("source", ".", "root of the Cleave repository")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *source)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, source string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	fmt.Println("==> Starting a local Kubernetes (the first time its programs are built, which takes some minutes)")
	client, err := workload.Up(ctx, cluster.Options{Source: source, Output: os.Stdout,
		NodeLabels: map[string]string{release.NodeLabel: "true"}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fmt.Printf("==> Installing Cleave with Helm on a simulated %s node\n", model)
	n, err := install(ctx, client, source)
	if err != nil {
		return err
	}
	fmt.Println("==> Creating the examples " + strings.Join(examples, ", "))
	pods, err := createAll(ctx, client, source)
	if err != nil {
		return err
	}
	return show(ctx, client, source, n, pods)
}

// install installs the chart on a simulated node and waits until its GPUs are published.
func install(ctx context.Context, client workload.Client, source string) (*node.Node, error) {
	bed, err := release.Prepare(ctx, client.Cluster, source, model)
	if err != nil {
		return nil, err
	}
	port, err := cluster.FreePort(ctx, "")
	if err != nil {
		return nil, err
	}
	// On the network of the host the plugin reaches the API server by itself, also after this program ended. MPS servers
	// stay in the supervisor's cgroup, which goes with the cluster.
	values := bed.Values(release.Settings{APIHost: "127.0.0.1", APIPort: strconv.Itoa(client.Cluster.APIServerPort()), HostPort: port})
	if _, err := bed.Helm(ctx, values, "install", "cleave", release.Chart(source), "--create-namespace"); err != nil {
		return nil, err
	}
	return bed.Node, client.WaitSlices(ctx, workload.Driver, func(pool []resourceapi.ResourceSlice) bool {
		return slices.ContainsFunc(pool, func(s resourceapi.ResourceSlice) bool { // shares by MPS come last
			return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return strings.HasSuffix(d.Name, "-mps") })
		})
	})
}

// createAll applies the examples as they are and returns the names of their pods.
func createAll(ctx context.Context, client workload.Client, source string) (pods []string, err error) {
	for _, name := range examples {
		data, err := os.ReadFile(filepath.Join(source, "deployments", "examples", name+".yaml"))
		if err != nil {
			return nil, fmt.Errorf("read the example %s: %w", name, err)
		}
		objects, err := workload.Decode(data)
		if err != nil {
			return nil, fmt.Errorf("read the example %s: %w", name, err)
		}
		for i, document := range strings.Split(string(data), "\n---\n") {
			if _, err := client.Kubectl(ctx, document, "--namespace", namespace, "apply", "-f", "-"); err != nil {
				return nil, err
			}
			// One after the other, so that shares gather on one GPU: while an allocation is under way, the scheduler
			// counts its GPU as taken.
			if pod, ok := objects[i].(*corev1.Pod); ok {
				pods = append(pods, pod.Name)
				if _, err := client.WaitRunning(ctx, namespace, pod.Name); err != nil {
					return nil, err
				}
			}
		}
	}
	return pods, nil
}

// row is what a pod got, and what its first container sees of it.
type row struct {
	pod     string
	devices []workload.Allocated
	sees    []string
}

// look waits for the pods and sees what they got.
func look(ctx context.Context, client workload.Client, pods []string) ([]row, error) {
	var rows []row
	for _, name := range pods {
		pod, err := client.WaitRunning(ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		devices, err := client.Devices(ctx, pod)
		if err != nil {
			return nil, err
		}
		seen, err := client.LookInside(ctx, namespace, name, pod.Spec.Containers[0].Name)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row{name, devices, sight(seen, devices)})
	}
	return rows, nil
}

// takeCommon takes the lines out of rows that all of them have.
func takeCommon(rows []row) []string {
	var common []string
	for _, line := range slices.Clone(rows[0].sees) {
		if !slices.ContainsFunc(rows, func(r row) bool { return !slices.Contains(r.sees, line) }) {
			common = append(common, line)
		}
	}
	for i := range rows {
		rows[i].sees = slices.DeleteFunc(rows[i].sees, func(line string) bool { return slices.Contains(common, line) })
	}
	return common
}

// show waits for the pods and prints the table.
func show(ctx context.Context, client workload.Client, source string, n *node.Node, pods []string) error {
	rows, err := look(ctx, client, pods)
	if err != nil {
		return err
	}
	common := takeCommon(rows)
	fmt.Println()
	if err := writeTable(os.Stdout, rows); err != nil {
		return err
	}
	fmt.Printf("\nEvery container sees besides: %s\n", strings.Join(common, " "))
	fmt.Print(closing(client.Cluster, source, n.Root()))
	return nil
}

// writeTable writes what each pod got and sees.
func writeTable(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POD\tCLASS\tDEVICE\tUUID\tCONTAINER SEES")
	for _, r := range rows {
		for i := range max(len(r.devices), len(r.sees)) {
			cells := []string{"", "", "", "", ""}
			if i == 0 {
				cells[0] = r.pod
			}
			if i < len(r.devices) {
				cells[1], cells[2], cells[3] = r.devices[i].Class, r.devices[i].Device, r.devices[i].UUID
			}
			if i < len(r.sees) {
				cells[4] = r.sees[i]
			}
			fmt.Fprintln(t, strings.Join(cells, "\t"))
		}
	}
	return t.Flush()
}

// closing says what to do next, in lines that work when they are pasted.
func closing(c *cluster.Cluster, source, root string) string {
	return strings.NewReplacer("$kubeconfig", c.Kubeconfig(), "$bin", filepath.Join(source, "bin"), "$kubectl", filepath.Dir(c.Kubectl()),
		"$node", c.NodeName(), "$namespace", release.Namespace, "$root", root).Replace(`
Cleave was installed by Helm. Have kubectl, helm and cleave at hand:
  export KUBECONFIG=$kubeconfig PATH=$bin:$kubectl:"$PATH"

Look around:
  kubectl get pods,resourceclaims,resourceslices
  kubectl -n $namespace get pods
  kubectl -n $namespace logs daemonset/cleave-plugin
  cleave inspect --from-cluster  # all nodes, a line each
  cleave inspect --from-cluster $node  # who has what, as the API server knows it
  kubectl -n $namespace exec daemonset/cleave-plugin -- cleave-node inspect  # the same from the node's GPUs and records
  nvml-sim show --root $root

Go on:
  kubectl apply -f deployments/examples/mig-first-available.yaml  # a free corner of the GPU in partitions
  kubectl delete -f deployments/examples/one-gpu.yaml
  helm -n $namespace status cleave

Stop it and remove all of it:
  make cluster-down
`)
}

// sight puts what a container sees in a few short lines. The UUIDs of its devices have a column of their own.
func sight(s workload.Seen, devices []workload.Allocated) []string {
	lines := []string{strings.Join(s.GPUNodes(), " ")}
	gpus := strings.Join(s.GPUNodes(), " ") + " "
	for _, n := range s.DeviceNodes {
		if !strings.Contains(gpus, n+" ") {
			lines = append(lines, n)
		}
	}
	lines = append(lines, s.Libraries...)
	for _, variable := range s.Environment {
		name, value, _ := strings.Cut(variable, "=")
		uuids := strings.Split(value, ",")
		other := func(d workload.Allocated) bool { return !slices.Contains(uuids, d.UUID) }
		if len(uuids) == len(devices) && !slices.ContainsFunc(devices, other) {
			variable = name
		}
		lines = append(lines, variable)
	}
	return lines
}
