// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	kube "github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/validation"
)

// explainTimeout bounds the search on all nodes.
const explainTimeout = 30 * time.Second

// explainFlags of `cleave explain`.
type explainFlags struct {
	clients    clientFlags
	file       string
	driverName string
	format     string
}

func newExplain() *cobra.Command {
	f := &explainFlags{}
	cmd := &cobra.Command{
		Use:   "explain pod|claim|template NAME",
		Short: "Say why a pod or claim gets no GPU, and what would fit",
		Long: "explain runs the scheduler's allocator on the ResourceSlices and the allocated claims of a cluster, and says what refuses\n" +
			"a pod or a claim on each node: selectors, taints, claims that have the devices, amounts that are missing, constraints,\n" +
			"a class or claim that does not exist, a node that publishes nothing. It ends with what would fit now, and which pods of a lower\n" +
			"priority could be evicted. It changes nothing.\n\n" +
			"With -f it explains claims or templates of a file, which need not exist; DeviceClasses of the file count, too.\n\n" +
			"Exit codes: 0 it fits or is allocated, 1 it fits no node or the command failed, 2 usage.",
		Example: "  cleave explain pod trainer\n" +
			"  cleave explain claim -n team trainer-gpu-x7k2p\n" +
			"  cleave explain -f claim.yaml -o json",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, err := f.check(args)
			if err != nil {
				return cli.UsageError(err)
			}
			client, namespace, err := f.clients.client()
			if err != nil {
				return err
			}
			a := &asker{client: client, namespace: namespace, driver: f.driverName}
			if f.file != "" {
				err = a.inFile(f.file, cmd.InOrStdin())
			} else {
				a.kind, a.name = kind, name
			}
			if err != nil {
				return err
			}
			return f.explain(cmd.Context(), a, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.file, "file", "f", "", "file with claims or templates to explain, - for the standard input")
	flags.StringVarP(&f.clients.namespace, "namespace", "n", "", "namespace; empty for the context's")
	flags.StringVarP(&f.format, "output", "o", "text", "text or json")
	f.clients.add(flags, "")
	flags.StringVar(&f.driverName, "driver-name", v1alpha1.Group, "name of the DRA driver")
	return cmd
}

// kinds of objects by the words for them.
var kinds = map[string]string{
	"pod": "pod", "pods": "pod", "po": "pod", "claim": "claim", "resourceclaim": "claim", "resourceclaims": "claim",
	"template": "template", "resourceclaimtemplate": "template", "resourceclaimtemplates": "template",
}

// check validates the flags and arguments, which are "KIND NAME" or "KIND/NAME".
func (f *explainFlags) check(args []string) (kind, name string, err error) {
	if f.format != "text" && f.format != "json" {
		return "", "", fmt.Errorf("--output %q is not one of text, json", f.format)
	}
	if err := nodeslices.CheckDriverName(f.driverName); err != nil {
		return "", "", err
	}
	if f.file != "" {
		if len(args) > 0 {
			return "", "", fmt.Errorf("unexpected argument %q: -f names what to explain", args[0])
		}
		return "", "", nil
	}
	if len(args) == 1 {
		args = strings.SplitN(args[0], "/", 2)
	}
	if len(args) != 2 || args[1] == "" {
		return "", "", errors.New("name what to explain: pod NAME, claim NAME, template NAME, or -f FILE")
	}
	if kind = kinds[args[0]]; kind == "" {
		return "", "", fmt.Errorf("%q is not one of pod, claim, template", args[0])
	}
	return kind, args[1], nil
}

// explain prints the answers. The error is about claims that fit no node.
func (f *explainFlags) explain(ctx context.Context, a *asker, w io.Writer) error {
	answers, err := a.answers(ctx)
	if err != nil {
		return err
	}
	var refused []string
	for i, e := range answers {
		if e.State == explain.Refused {
			refused = append(refused, e.Subject)
		}
		if f.format == "json" {
			continue
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := e.Print(w); err != nil {
			return err
		}
	}
	if f.format == "json" {
		var out any = answers
		if f.file == "" {
			out = answers[0]
		}
		if err := cli.PrintJSON(w, out); err != nil {
			return err
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("%s fits no node", strings.Join(refused, ", "))
	}
	return nil
}

// asker reads the objects for a question.
type asker struct {
	client            kubernetes.Interface
	namespace, driver string
	kind, name        string
	// objects are those of a file.
	objects []runtime.Object
}

// inFile reads a file of claims and templates.
func (a *asker) inFile(path string, stdin io.Reader) error {
	in := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("read the claims: %w", err)
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, 2<<20))
	if err == nil {
		a.objects, err = validation.Decode(data)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// answers reads the cluster and explains.
func (a *asker) answers(ctx context.Context) ([]*explain.Explanation, error) {
	o, notes, err := a.read(ctx)
	if err != nil {
		return nil, err
	}
	questions, err := a.questions(ctx, o)
	if err != nil {
		return nil, err
	}
	if len(questions) == 0 {
		return nil, cli.UsageError(errors.New("the file has no claim or template"))
	}
	if slices.ContainsFunc(questions, (*explain.Question).Waits) {
		o.Running = a.running(ctx)
	}
	cluster := explain.NewCluster(o, questions...)
	if err := eachSlice(ctx, a.client, nil, cluster.AddSlice); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	var all []*explain.Explanation
	for _, q := range questions {
		e, err := cluster.Explain(ctx, q)
		if err != nil {
			return nil, err
		}
		e.Notes = append(e.Notes, notes...)
		all = append(all, e)
	}
	return all, nil
}

// read lists the objects that the allocator uses. DeviceTaintRules are optional: older releases have none.
func (a *asker) read(ctx context.Context) (o explain.Objects, notes []string, err error) {
	o.Driver = a.driver
	api := a.client.ResourceV1()
	err = errors.Join(
		each(ctx, "Nodes", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return a.client.CoreV1().Nodes().List(ctx, opts)
		}, func(n *corev1.Node) {
			o.Nodes = append(o.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec,
				Status: corev1.NodeStatus{Allocatable: n.Status.Allocatable}})
		}),
		each(ctx, "ResourceClaims", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return api.ResourceClaims(metav1.NamespaceAll).List(ctx, opts)
		}, func(c *resourceapi.ResourceClaim) {
			if c.Status.Allocation != nil || c.Namespace == a.namespace {
				c.ManagedFields = nil
				o.Claims = append(o.Claims, c)
			}
		}),
		each(ctx, "DeviceClasses", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return api.DeviceClasses().List(ctx, opts)
		}, func(c *resourceapi.DeviceClass) { o.Classes = append(o.Classes, c) }),
	)
	rulesErr := each(ctx, "DeviceTaintRules", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return api.DeviceTaintRules().List(ctx, opts)
	}, func(r *resourceapi.DeviceTaintRule) { o.Rules = append(o.Rules, r) })
	if rulesErr != nil && !apierrors.IsNotFound(rulesErr) {
		notes = append(notes, fmt.Sprintf("Taints of DeviceTaintRules are not considered: %v", rulesErr))
	}
	notes = append(notes, notCounted(ctx, a.client, a.driver)...)
	for _, object := range a.objects {
		if class, ok := object.(*resourceapi.DeviceClass); ok {
			o.Classes = append(o.Classes, class)
		}
	}
	return o, notes, err
}

// running lists the pods that could be evicted, as far as the user may.
func (a *asker) running(ctx context.Context) *explain.Running {
	r := &explain.Running{Now: time.Now()}
	r.PodsUnread = each(ctx, "Pods", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return a.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, opts)
	}, func(p *corev1.Pod) {
		r.Pods = append(r.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp},
			Spec: corev1.PodSpec{NodeName: p.Spec.NodeName, Priority: p.Spec.Priority}, Status: corev1.PodStatus{StartTime: p.Status.StartTime}})
	})
	r.BudgetsUnread = each(ctx, "PodDisruptionBudgets", func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		return a.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, opts)
	}, func(b *policyv1.PodDisruptionBudget) { r.Budgets = append(r.Budgets, b) })
	return r
}

// notCounted lists what the cluster does not count, and nodes therefore do not offer.
func notCounted(ctx context.Context, client kubernetes.Interface, driver string) (notes []string) {
	counted, err := kube.AskCounted(ctx, client, driver)
	if err != nil {
		return []string{fmt.Sprintf("Whether the cluster counts all tiers is not known: %v", err)}
	}
	for _, why := range []error{counted.Counters, counted.Shares, counted.SharesBeside} {
		if why != nil {
			notes = append(notes, strings.ToUpper(why.Error()[:1])+why.Error()[1:]+".")
		}
	}
	return notes
}

// questions are the user's questions.
func (a *asker) questions(ctx context.Context, o explain.Objects) (all []*explain.Question, err error) {
	for _, object := range a.objects {
		switch object := object.(type) {
		case *resourceapi.ResourceClaim:
			object.Namespace = a.in(object.Namespace)
			all = append(all, explain.AboutClaim(object))
		case *resourceapi.ResourceClaimTemplate:
			object.Namespace = a.in(object.Namespace)
			all = append(all, explain.AboutTemplate(object))
		}
	}
	if a.name == "" {
		return all, nil
	}
	q, err := a.question(ctx, o)
	return append(all, q), err
}

// in is the namespace of an object of a file.
func (a *asker) in(namespace string) string {
	if namespace == "" {
		return a.namespace
	}
	return namespace
}

// question is about one object of the cluster.
func (a *asker) question(ctx context.Context, o explain.Objects) (*explain.Question, error) {
	api := a.client.ResourceV1()
	switch a.kind {
	case "claim":
		claim, err := api.ResourceClaims(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the claim: %w", err)
		}
		return explain.AboutClaim(claim), nil
	case "template":
		template, err := api.ResourceClaimTemplates(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the template: %w", err)
		}
		return explain.AboutTemplate(template), nil
	}
	pod, err := a.client.CoreV1().Pods(a.namespace).Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	in := explain.Namespace{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	for _, claim := range o.Claims {
		if claim.Namespace == a.namespace {
			in.Claims[claim.Name] = claim
		}
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName == nil {
			continue
		}
		template, err := api.ResourceClaimTemplates(a.namespace).Get(ctx, *ref.ResourceClaimTemplateName, metav1.GetOptions{})
		switch {
		case err == nil:
			in.Templates[template.Name] = template
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read the pod's template: %w", err)
		}
	}
	return explain.AboutPod(pod, in, o), nil
}
