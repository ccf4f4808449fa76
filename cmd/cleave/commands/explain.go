// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/cli"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
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
	verbose    bool
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
			"With -f it explains the pods, claims and templates of a file, which need not exist: Pods, and pod templates of any kind, such as\n" +
			"Deployments, CronJobs, LeaderWorkerSets or RayClusters, with the claims, templates and DeviceClasses of the file.\n\n" +
			"Exit codes: 0 it fits, is allocated or scheduled, 1 it fits no node or the command failed, 2 usage, 3 its devices are free or\n" +
			"allocated, and yet it waits: for a scheduler, a gate, a quota, or other resources.",
		Example: "  cleave explain pod trainer\n" +
			"  cleave explain claim -n team trainer-gpu-x7k2p\n" +
			"  cleave explain -f deployment.yaml -o json",
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
			if f.file == "" {
				a.kind, a.name = kind, name
				return f.explain(cmd.Context(), a, cmd.OutOrStdout())
			}
			if err := a.read(f.file, cmd.InOrStdin()); err != nil {
				return err
			}
			return f.explainFile(cmd.Context(), a, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.file, "file", "f", "", "file with pods, claims or templates to explain, - for the standard input")
	flags.StringVarP(&f.clients.namespace, "namespace", "n", "", "namespace; empty for the context's")
	flags.StringVarP(&f.format, "output", "o", "text", "text or json")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "name the counters of ResourceSlices that are used up, too")
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
	var refused, waiting []string
	for i, e := range answers {
		switch e.State {
		case explain.Refused:
			refused = append(refused, e.Subject)
		case explain.Waits:
			waiting = append(waiting, e.Subject)
		}
		if f.format == "json" {
			continue
		}
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := e.Print(w, f.verbose); err != nil {
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
	switch {
	case len(refused) > 0:
		return fmt.Errorf("%s fits no node", strings.Join(refused, ", "))
	case len(waiting) > 0:
		return cli.WithCode(fmt.Errorf("%s waits, and not for devices", strings.Join(waiting, ", ")), cli.ExitWaits)
	}
	return nil
}

// asker reads the objects for a question.
type asker struct {
	client            kubernetes.Interface
	namespace, driver string
	kind, name        string
	// file has the objects of one.
	file *validation.Decoded
}

// answers reads the cluster and explains.
func (a *asker) answers(ctx context.Context) ([]*explain.Explanation, error) {
	o, notes, err := a.objects(ctx)
	if err != nil {
		return nil, err
	}
	questions, err := a.questions(ctx, &o)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(questions, (*explain.Question).AsksPods) {
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

// objects lists those that the allocator uses. DeviceTaintRules are optional: older releases have none.
func (a *asker) objects(ctx context.Context) (o explain.Objects, notes []string, err error) {
	o.Driver, o.Now = a.driver, time.Now()
	api := a.client.ResourceV1()
	err = errors.Join(
		each(ctx, "Nodes", a.client.CoreV1().Nodes().List, func(n *corev1.Node) {
			o.Nodes = append(o.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec,
				Status: corev1.NodeStatus{Allocatable: n.Status.Allocatable}})
		}),
		each(ctx, "ResourceClaims", api.ResourceClaims(metav1.NamespaceAll).List, func(c *resourceapi.ResourceClaim) {
			if c.Status.Allocation != nil || a.isAsked(c.Namespace) {
				c.ManagedFields = nil
				o.Claims = append(o.Claims, c)
			}
		}),
		each(ctx, "DeviceClasses", api.DeviceClasses().List, func(c *resourceapi.DeviceClass) { o.Classes = append(o.Classes, c) }),
	)
	rulesErr := each(ctx, "DeviceTaintRules", api.DeviceTaintRules().List,
		func(r *resourceapi.DeviceTaintRule) { o.Rules = append(o.Rules, r) })
	if rulesErr != nil && !apierrors.IsNotFound(rulesErr) {
		notes = append(notes, fmt.Sprintf("Taints of DeviceTaintRules are not considered: %v", rulesErr))
	}
	if unknown := askScheduler(ctx, a.client, &o); unknown != "" {
		notes = append(notes, unknown)
	}
	return o, notes, err
}

// running lists the pods that could be evicted, as far as the user may.
func (a *asker) running(ctx context.Context) *explain.Running {
	r := &explain.Running{Now: time.Now()}
	r.PodsUnread = each(ctx, "Pods", a.client.CoreV1().Pods(metav1.NamespaceAll).List, func(p *corev1.Pod) {
		r.Pods = append(r.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp},
			Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, SchedulerName: p.Spec.SchedulerName, Priority: p.Spec.Priority},
			Status: corev1.PodStatus{StartTime: p.Status.StartTime}})
	})
	r.BudgetsUnread = each(ctx, "PodDisruptionBudgets", a.client.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll).List,
		func(b *policyv1.PodDisruptionBudget) { r.Budgets = append(r.Budgets, b) })
	return r
}

// questions are the user's questions.
func (a *asker) questions(ctx context.Context, o *explain.Objects) ([]*explain.Question, error) {
	if a.file != nil {
		return a.ofFile(ctx, o)
	}
	q, err := a.question(ctx, *o)
	if err != nil {
		return nil, err
	}
	return []*explain.Question{q}, nil
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
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the pod: %w: if it was not created, the Events of its owner say what refused it: "+
			"kubectl describe replicaset, job or statefulset", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	in, err := a.namespaceOf(ctx, pod, o)
	if err != nil {
		return nil, err
	}
	in.Events, in.EventsUnread = a.eventsOf(ctx, pod)
	return explain.AboutPod(pod, in, o), nil
}

// namespaceOf reads the claims and templates that a pod can name.
func (a *asker) namespaceOf(ctx context.Context, pod *corev1.Pod, o explain.Objects) (explain.Namespace, error) {
	in := explain.Namespace{Claims: map[string]*resourceapi.ResourceClaim{}, Templates: map[string]*resourceapi.ResourceClaimTemplate{}}
	for _, claim := range o.Claims {
		if claim.Namespace == pod.Namespace {
			in.Claims[claim.Name] = claim
		}
	}
	for _, template := range a.templates(pod.Namespace) {
		in.Templates[template.Name] = template
	}
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.ResourceClaimTemplateName == nil || in.Templates[*ref.ResourceClaimTemplateName] != nil {
			continue
		}
		template, err := a.client.ResourceV1().ResourceClaimTemplates(pod.Namespace).Get(ctx, *ref.ResourceClaimTemplateName, metav1.GetOptions{})
		switch {
		case err == nil:
			in.Templates[template.Name] = template
		case !apierrors.IsNotFound(err):
			return in, fmt.Errorf("read the pod's template: %w", err)
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 || a.file != nil {
		in.QuotasUnread = each(ctx, "ResourceQuotas", a.client.CoreV1().ResourceQuotas(pod.Namespace).List,
			func(q *corev1.ResourceQuota) { in.Quotas = append(in.Quotas, q) })
	}
	return in, nil
}

// eventsOf are the Events of a pod without a node, as far as the user may read them.
func (a *asker) eventsOf(ctx context.Context, pod *corev1.Pod) (events []corev1.Event, err error) {
	if pod.Spec.NodeName != "" {
		return nil, nil
	}
	err = each(ctx, "Events", func(ctx context.Context, opts metav1.ListOptions) (*corev1.EventList, error) {
		opts.FieldSelector = fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)).String()
		return a.client.CoreV1().Events(pod.Namespace).List(ctx, opts)
	}, func(e *corev1.Event) {
		if e.InvolvedObject.UID == pod.UID {
			events = append(events, *e)
		}
	})
	return events, err
}
