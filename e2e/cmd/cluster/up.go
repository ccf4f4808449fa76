// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/cleave-dra/cleave/e2e/cluster"
)

func up(ctx context.Context, args []string, stdout io.Writer) error {
	f := newFlags("up", "Installs and builds what is missing, clears what an earlier cluster left, starts\n"+
		"the cluster, and returns when pods can run on it.", stdout)
	f.dirFlag()
	f.buildFlags()
	f.StringVar(&f.options.NodeName, "node-name", cluster.DefaultNodeName, "`name` of the node, or of several with -1, -2 and so on after it")
	f.IntVar(&f.options.Nodes, "nodes", 1, "`number` of nodes; of several, each has a kubelet and a containerd in namespaces of its own")
	f.StringVar(&f.gates, "feature-gates", "", "`list` of feature gates for all components, as in A=true,B=false")
	f.StringVar(&f.runtime, "runtime-config", "", "`list` of APIs to switch on or off, as in resource.k8s.io/v1beta2=true")
	f.BoolVar(&f.recreate, "recreate", false, "replace a healthy cluster")
	if err := f.parse(args); err != nil {
		return err
	}
	f.options.Output = stdout
	if c, err := cluster.Open(f.options.Dir); err == nil && !f.recreate && c.Healthy(ctx) == nil {
		if !c.Fits(f.options) {
			return fmt.Errorf("start Kubernetes %s: Kubernetes %s with options of its own runs in %s already; stop it first, or add "+
				"--recreate to replace it", f.options.Version, c.Version(), c.Dir())
		}
		fmt.Fprintf(stdout, "Kubernetes %s runs already (--recreate starts a new one)\n", c.Version())
		return printUse(stdout, c)
	}
	c, err := cluster.Up(ctx, f.options)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Kubernetes %s runs\n", c.Version())
	return printUse(stdout, c)
}

func printUse(out io.Writer, c *cluster.Cluster) error {
	stop := "make cluster-down"
	if c.Dir() != cluster.DefaultDir {
		stop = "go run ./e2e/cmd/cluster down --dir " + c.Dir()
	}
	_, err := fmt.Fprintf(out, `
Use it:
  export KUBECONFIG=%s
  %s get nodes
Stop it:
  %s
`, c.Kubeconfig(), c.Kubectl(), stop)
	return err
}
