// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// cordonFlags of `cleave cordon` and `cleave uncordon`.
type cordonFlags struct {
	clients    clientFlags
	driverName string
}

func newCordon() *cobra.Command {
	return newCordonCommand(&cobra.Command{
		Use:   "cordon NODE GPU...",
		Short: "Keep new claims off single GPUs of a node",
		Long: "cordon keeps new claims off GPUs, by a DeviceTaintRule (NoSchedule) for each of their devices: the whole GPU, its shares and\n" +
			"its partitions. Allocations stay. A GPU is given as inspect names it, such as GPU2 or 2, by its UUID, PCI address or device.\n\n" +
			"Repeat it after the node's policy has changed: devices that are new have no rule. It needs Kubernetes 1.37.",
		Example: "  cleave cordon gpu-node-1 GPU2\n" +
			"  cleave cordon gpu-node-1 0000:1b:00.0 GPU-1d74e060-e9f9-5ece-8403-f8752dbe85c8",
	}, cordon)
}

func newUncordon() *cobra.Command {
	return newCordonCommand(&cobra.Command{
		Use:     "uncordon NODE GPU...",
		Short:   "Let claims have GPUs that cordon has closed",
		Long:    "uncordon deletes the DeviceTaintRules of cordon. Other taints of the GPUs stay.",
		Example: "  cleave uncordon gpu-node-1 GPU2",
	}, uncordon)
}

// cordoning is the work on one GPU.
type cordoning func(ctx context.Context, client kubernetes.Interface, view *inspect.View, g *inspect.GPU, w io.Writer) error

func newCordonCommand(cmd *cobra.Command, do cordoning) *cobra.Command {
	f := &cordonFlags{}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const least = 2
		if len(args) < least {
			return cli.UsageError(errors.New("a node and at least one of its GPUs are needed: cleave inspect --from-cluster NODE shows them"))
		}
		client, _, err := f.clients.client()
		if err != nil {
			return err
		}
		return f.run(cmd.Context(), client, args[0], args[1:], do, cmd.OutOrStdout())
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.clients.add(flags, "")
	flags.StringVar(&f.driverName, "driver-name", v1alpha1.Group, "name of the DRA driver")
	return cmd
}

// run does something to GPUs of a node; nothing if one of them does not exist.
func (f *cordonFlags) run(ctx context.Context, client kubernetes.Interface, node string, names []string, do cordoning, w io.Writer) error {
	view, err := viewNode(ctx, client, node, f.driverName)
	if err != nil {
		return err
	}
	var gpus []*inspect.GPU
	for _, name := range names {
		g := findGPU(view, name)
		if g == nil {
			return fmt.Errorf("node %s has no GPU %q: it has %s", node, name, gpuNames(view))
		}
		if !slices.Contains(gpus, g) {
			gpus = append(gpus, g)
		}
	}
	for _, g := range gpus {
		if err := do(ctx, client, view, g, w); err != nil {
			return err
		}
	}
	return nil
}

// findGPU finds a GPU by a name for people or programs; nil for none.
func findGPU(view *inspect.View, name string) *inspect.GPU {
	for i := range view.GPUs {
		g := &view.GPUs[i]
		if strings.EqualFold(name, g.Name) || "GPU"+name == g.Name || name == g.Device || name == g.UUID ||
			name != "" && strings.EqualFold(name, g.PCIAddress) {
			return g
		}
	}
	return nil
}

func gpuNames(view *inspect.View) string {
	var names []string
	for i := range view.GPUs {
		names = append(names, view.GPUs[i].Name)
	}
	return strings.Join(names, ", ")
}

// cordon creates a rule for each device of a GPU that has none.
func cordon(ctx context.Context, client kubernetes.Interface, view *inspect.View, g *inspect.GPU, w io.Writer) error {
	rules, err := cordonRules(ctx, client, view, g)
	if err != nil {
		return err
	}
	created := 0
	for i := range g.Shapes {
		device := g.Shapes[i].Device
		if slices.ContainsFunc(rules, func(r resourceapi.DeviceTaintRule) bool { return *r.Spec.DeviceSelector.Device == device }) {
			continue
		}
		_, err := client.ResourceV1().DeviceTaintRules().Create(ctx, cordonRule(view, device), metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("cordon %s of node %s, %d of whose %d devices are closed: %w", g.Name, view.Node, len(rules)+created,
				len(g.Shapes), err)
		}
		created++
	}
	what := fmt.Sprintf("%s of node %s (%s) cordoned: %s", g.Name, view.Node, g.Device, amount(created, "device"))
	if created == 0 {
		what = fmt.Sprintf("%s of node %s (%s) was cordoned already", g.Name, view.Node, g.Device)
	}
	_, err = fmt.Fprintln(w, what+stays(g))
	return err
}

// stays names the claims that keep devices of a GPU.
func stays(g *inspect.GPU) string {
	var claims []string
	for i := range g.Shapes {
		for _, c := range g.Shapes[i].Claims {
			claims = append(claims, c.Claim)
		}
	}
	if len(claims) == 0 {
		return ""
	}
	return "; it stays allocated to " + names(claims)
}

// cordonRule closes a device of a node.
func cordonRule(view *inspect.View, device string) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "cordon-" + device + "-"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &view.Driver, Pool: &view.Node, Device: &device},
			Taint:          resourceapi.DeviceTaint{Key: nodeslices.TaintCordoned, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
}

// uncordon deletes the rules of a GPU, also those of devices that are no longer published.
func uncordon(ctx context.Context, client kubernetes.Interface, view *inspect.View, g *inspect.GPU, w io.Writer) error {
	rules, err := cordonRules(ctx, client, view, g)
	if err != nil {
		return err
	}
	for i := range rules {
		err := client.ResourceV1().DeviceTaintRules().Delete(ctx, rules[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("uncordon %s of node %s, %d of whose %d rules are deleted: %w", g.Name, view.Node, i, len(rules), err)
		}
	}
	what := "uncordoned: " + amount(len(rules), "device")
	if len(rules) == 0 {
		what = "was not cordoned"
	}
	_, err = fmt.Fprintf(w, "%s of node %s (%s) %s\n", g.Name, view.Node, g.Device, what)
	return err
}

func cordonRules(
	ctx context.Context, client kubernetes.Interface, view *inspect.View, g *inspect.GPU,
) ([]resourceapi.DeviceTaintRule, error) {
	var rules []resourceapi.DeviceTaintRule
	err := each(ctx, "DeviceTaintRules", client.ResourceV1().DeviceTaintRules().List, func(r *resourceapi.DeviceTaintRule) {
		s := r.Spec.DeviceSelector
		if r.Spec.Taint.Key != nodeslices.TaintCordoned || s == nil || s.Driver == nil || s.Pool == nil || s.Device == nil {
			return
		}
		if *s.Driver == view.Driver && *s.Pool == view.Node && (*s.Device == g.Device || strings.HasPrefix(*s.Device, g.Device+"-")) {
			rules = append(rules, *r)
		}
	})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("this cluster has no DeviceTaintRules, which Kubernetes has from 1.37 on: %w", err)
	}
	return rules, err
}
