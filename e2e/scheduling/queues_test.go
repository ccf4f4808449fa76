// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/packing"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
)

// queueNamespaces are those of the examples' LocalQueues.
var queueNamespaces = map[string]string{"interactive": "notebooks", "batch": "training", "backfill": "sweeps"}

// addGPUNode creates a node with the first GPUs of an HGX H100, under a policy of rules.
func (b *queueBed) addGPUNode(name string, gpus int, rules ...v1alpha1.Rule) {
	b.t.Helper()
	inventory, err := packing.Inventory(b.t.Context(), "hgx-h100")
	must(b.t, err)
	inventory.GPUs = inventory.GPUs[:gpus]
	b.addNode(name)
	node := policy.Apply(&v1alpha1.NodePolicy{Rules: rules}, inventory.Node, policy.Capabilities{})
	list := nodeslices.Objects(node, v1alpha1.Group, name)
	for i := range list.Items {
		must(b.t, errOf(b.kube.ResourceV1().ResourceSlices().Create(b.t.Context(), &list.Items[i], metav1.CreateOptions{})))
	}
}

// newJob is a Job of a queue whose pods have a claim for a device of a class each.
func newJob(queue, name, class string, pods int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: queueNamespaces[queue], Labels: map[string]string{"kueue.x-k8s.io/queue-name": queue}},
		Spec: batchv1.JobSpec{Parallelism: &pods, Completions: &pods, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			PriorityClassName: queue, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: "i", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &class}},
		}}},
	}
}

// submit creates a Job of a queue, with the template of its claims.
func (b *queueBed) submit(queue, name, class string, pods int32) {
	b.t.Helper()
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: class, Namespace: queueNamespaces[queue]},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: workload.ClaimSpec(class, 1)},
	}
	_, err := b.kube.ResourceV1().ResourceClaimTemplates(template.Namespace).Create(b.t.Context(), template, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must(b.t, err)
	}
	b.create(newJob(queue, name, class, pods))
}

func (b *queueBed) create(job *batchv1.Job) {
	b.t.Helper()
	job.Spec.Template.Spec.SchedulerName = "cleave-scheduler"
	must(b.t, errOf(b.kube.BatchV1().Jobs(job.Namespace).Create(b.t.Context(), job, metav1.CreateOptions{})))
}

// ends deletes a Job with its pods.
func (b *queueBed) ends(queue, name string) {
	b.t.Helper()
	must(b.t, b.kube.BatchV1().Jobs(queueNamespaces[queue]).Delete(b.t.Context(), name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground)}))
}

// eventually waits until as many pods run as are wanted, by Job. Those of Jobs with a number are one, as backfill-3 is.
func (b *queueBed) eventually(what string, want map[string]int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, what, func(ctx context.Context) (bool, string, error) {
		pods, err := b.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		got := map[string]int{}
		for i := range pods.Items {
			if p := &pods.Items[i]; p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				job, _, _ := strings.Cut(p.Labels[batchv1.JobNameLabel], "-")
				got[job]++
			}
		}
		return maps.Equal(want, got), fmt.Sprintf("run: %v, want %v", got, want), nil
	})
	if err != nil {
		b.t.Fatalf("%v\nWorkloads:\n%s\nKueue's log ends with:\n%s", err, b.describe(), b.kueue.LogTail(20))
	}
}

// kueueWorkload is what is looked at of Kueue's Workload of a Job.
type kueueWorkload struct {
	Metadata struct{ OwnerReferences []metav1.OwnerReference }
	Status   struct{ Conditions []metav1.Condition }
}

func (b *queueBed) objects(ctx context.Context, path string, into any) error {
	data, err := b.kube.Discovery().RESTClient().Get().AbsPath("/apis/kueue.x-k8s.io/v1beta2/" + path).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

func (b *queueBed) describe() string {
	var list struct{ Items []kueueWorkload }
	if err := b.objects(context.WithoutCancel(b.t.Context()), "workloads", &list); err != nil {
		return err.Error()
	}
	text := &strings.Builder{}
	for _, w := range list.Items {
		for _, c := range w.Status.Conditions {
			fmt.Fprintf(text, "%s: %s=%s %s: %s\n", w.Metadata.OwnerReferences[0].Name, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return text.String()
}

// waitsFor waits until Kueue says why a Job has no quota.
func (b *queueBed) waitsFor(job, reason string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, fmt.Sprintf("Job %s to have no quota: %s", job, reason), func(ctx context.Context) (bool, string, error) {
		var list struct{ Items []kueueWorkload }
		if err := b.objects(ctx, "workloads", &list); err != nil {
			return false, "", err
		}
		for _, w := range list.Items {
			if w.Metadata.OwnerReferences[0].Name == job {
				c := meta.FindStatusCondition(w.Status.Conditions, "QuotaReserved")
				return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, reason), fmt.Sprint(w.Status.Conditions), nil
			}
		}
		return false, "there is no Workload", nil
	})
	must(b.t, err)
}

// uses waits until the ClusterQueue is charged so much.
func (b *queueBed) uses(want map[string]int64) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err := workload.Until(ctx, "usage of the quota", func(ctx context.Context) (bool, string, error) {
		var queue struct {
			Status struct {
				FlavorsUsage []struct {
					Resources []struct {
						Name  string
						Total resource.Quantity
					}
				}
			}
		}
		if err := b.objects(ctx, "clusterqueues/gpus", &queue); err != nil {
			return false, "", err
		}
		got := map[string]int64{}
		for _, f := range queue.Status.FlavorsUsage {
			for _, r := range f.Resources {
				if !r.Total.IsZero() {
					got[strings.TrimPrefix(r.Name, "cleave.dev/")] = r.Total.Value()
				}
			}
		}
		return maps.Equal(want, got), cmp.Diff(want, got), nil
	})
	must(b.t, err)
}

// addQueues applies objects of an example.
func (b *queueBed) addQueues(text string) {
	b.t.Helper()
	b.kubectl(text, "apply", "--server-side", "--validate=strict", "-f", "-")
}

// exampleJobs are those of the examples, with their templates created.
func (b *queueBed) exampleJobs() map[string]*batchv1.Job {
	b.t.Helper()
	objects, err := workload.Load(filepath.Join(kueueExamples, "jobs.yaml"))
	must(b.t, err)
	jobs := map[string]*batchv1.Job{}
	for _, o := range objects {
		switch o := o.(type) {
		case *batchv1.Job:
			jobs[o.Name] = o
		case *resourceapi.ResourceClaimTemplate:
			must(b.t, errOf(b.kube.ResourceV1().ResourceClaimTemplates(o.Namespace).Create(b.t.Context(), o, metav1.CreateOptions{})))
		}
	}
	return jobs
}

// TestQueues_Devices runs the three queues of the examples, by number of devices: who bumps whom, and who returns. An extended resource is
// admitted where it is requested, and all that the quotas allow runs on the GPUs that they are for.
func TestQueues_Devices(t *testing.T) {
	b := newQueueBed(t, "configuration-devices")
	b.addGPUNode("n1", 8, v1alpha1.Rule{Tiers: []v1alpha1.Tier{v1alpha1.TierExclusive}})
	b.addGPUNode("n2", 8,
		v1alpha1.Rule{Match: &v1alpha1.Match{Indexes: []int32{0, 1, 2, 3}}, Tiers: []v1alpha1.Tier{v1alpha1.TierMIG}},
		v1alpha1.Rule{Match: &v1alpha1.Match{Indexes: []int32{4, 5}}, Tiers: []v1alpha1.Tier{v1alpha1.TierTimeSlice}},
		v1alpha1.Rule{Tiers: []v1alpha1.Tier{v1alpha1.TierMPS}})
	b.addQueues(string(readExample(t, "queues-priority")))
	jobs := b.exampleJobs()

	jobs["sweep"].Name = "backfill-sweep" // Kueue chooses among those of one queue
	b.create(jobs["sweep"])
	for i := range 7 {
		b.submit("backfill", fmt.Sprint("backfill-", i), "gpu.cleave.dev", 1)
	}
	b.eventually("backfill to have all GPUs", map[string]int{"backfill": 8})
	b.uses(map[string]int64{"gpus": 8})
	b.submit("backfill", "late", "gpu.cleave.dev", 1)
	b.waitsFor("late", "insufficient unused quota")
	b.ends("backfill", "late")

	b.create(jobs["training"])
	b.eventually("batch to bump backfill", map[string]int{"backfill": 6, "training": 2})
	b.submit("interactive", "notebook", "gpu.cleave.dev", 7)
	b.eventually("interactive work to bump both", map[string]int{"notebook": 7, "backfill": 1})
	b.ends("interactive", "notebook")
	b.eventually("batch and backfill to return", map[string]int{"backfill": 6, "training": 2})
	b.ends("batch", "training")
	b.eventually("backfill to return", map[string]int{"backfill": 8})

	b.submit("batch", "small", "mig-1g.10gb.cleave.dev", 14)
	b.eventually("small partitions to fill two GPUs", map[string]int{"backfill": 8, "small": 14}) // in turn with large ones, not all would fit
	b.submit("batch", "large", "mig-3g.40gb.cleave.dev", 4)
	b.submit("batch", "slices", "timeslice.cleave.dev", 8)
	b.submit("batch", "shares", "mps.cleave.dev", 20)
	b.eventually("all quotas to be used", map[string]int{"backfill": 8, "small": 14, "large": 4, "slices": 8, "shares": 20})
	b.uses(map[string]int64{"gpus": 8, "small-partitions": 14, "large-partitions": 4, "timeslices": 8, "mps-shares": 20})
	b.gpus()
}
