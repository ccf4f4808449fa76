// Command demo runs Cleave's main job on this machine: a local Kubernetes, a simulated HGX H100 node, the driver, and
// three pods that get GPUs in three ways. It ends in a table of what each pod got and sees.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	model     = "hgx-h100"
	namespace = "default"
	// patience bounds every wait of the demo after the cluster is up.
	patience = 2 * time.Minute
)

// examples are the pods of the demo, by name; each is a file of deployments/examples.
var examples = []string{"one-gpu", "four-gpus", "extended-resource"}

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
	c, err := cluster.Up(ctx, cluster.Options{Source: source, Output: os.Stdout})
	if err != nil {
		return err
	}
	kube, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fmt.Printf("==> Starting Cleave on a simulated %s node\n", model)
	n, err := startNode(ctx, c, source)
	if err != nil {
		return err
	}
	client := workload.Client{Cluster: c, Kube: kube}
	err = workload.Until(ctx, "ResourceSlices", func(ctx context.Context) (bool, string, error) {
		list, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		return len(list.Items) >= 2, fmt.Sprintf("%d slices", len(list.Items)), nil
	})
	if err != nil {
		return err
	}
	fmt.Println("==> Creating DeviceClass gpu.cleave.dev and pods " + strings.Join(examples, ", "))
	if err := createAll(ctx, client, source); err != nil {
		return err
	}
	return show(ctx, client, n)
}

func startNode(ctx context.Context, c *cluster.Cluster, source string) (*node.Node, error) {
	dir, err := c.GuestDir("node")
	if err != nil {
		return nil, err
	}
	n, err := node.Create(ctx, node.Options{Cluster: c, Bin: filepath.Join(source, "bin"), Model: model, Dir: dir})
	if err != nil {
		return nil, err
	}
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	return n, n.WaitReady(ctx)
}

func createAll(ctx context.Context, client workload.Client, source string) error {
	files := []string{"manifests/deviceclass-gpu.yaml"}
	for _, name := range examples {
		files = append(files, "examples/"+name+".yaml")
	}
	for _, file := range files {
		objects, err := workload.Load(filepath.Join(source, "deployments", file))
		if err != nil {
			return err
		}
		if err := workload.Create(ctx, client.Kube, namespace, objects); err != nil {
			return err
		}
	}
	return nil
}

// show waits for the pods and prints the table.
func show(ctx context.Context, client workload.Client, n *node.Node) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nPOD\tCLASS\tDEVICE\tUUID\tCONTAINER SEES")
	for _, name := range examples {
		pod, err := client.WaitRunning(ctx, namespace, name)
		if err != nil {
			return err
		}
		devices, err := client.Devices(ctx, pod)
		if err != nil {
			return err
		}
		seen, err := client.Look(ctx, namespace, name, pod.Spec.Containers[0].Name)
		if err != nil {
			return err
		}
		lines := sight(seen)
		for i := range max(len(devices), len(lines)) {
			row := []string{"", "", "", "", ""}
			if i == 0 {
				row[0] = name
			}
			if i < len(devices) {
				row[1], row[2], row[3] = devices[i].Class, devices[i].Device, devices[i].UUID
			}
			if i < len(lines) {
				row[4] = lines[i]
			}
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	c := client.Cluster
	fmt.Printf("\nLook around:\n  export KUBECONFIG=%s PATH=%s:$PATH\n  kubectl get pods,resourceclaims,resourceslices\n"+
		"  %s show --root %s\n  less %s\nStop it and remove all of it:\n  make cluster-down\n",
		c.Kubeconfig(), filepath.Dir(c.Kubectl()), "bin/nvml-sim", n.Root(), n.Log())
	return nil
}

// sight puts what a container sees in a few short lines.
func sight(s workload.Seen) []string {
	lines := []string{strings.Join(s.GPUNodes(), " ")}
	var control []string
	gpus := strings.Join(s.GPUNodes(), " ") + " "
	for _, n := range s.DeviceNodes {
		if !strings.Contains(gpus, n+" ") {
			control = append(control, strings.TrimPrefix(n, "/dev/"))
		}
	}
	if len(control) > 0 {
		lines = append(lines, "and "+strings.Join(control, " "))
	}
	lines = append(lines, s.Libraries...)
	return append(lines, s.Environment...)
}
