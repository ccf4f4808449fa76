// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// TestQueues_Amounts runs the queues by amount. 14 partitions fill two GPUs, and a whole GPU needs the amounts of six of them: Kueue evicts
// six and admits it, though no GPU is whole then, and cleave-scheduler evicts what is left on one. Backfill returns.
func TestQueues_Amounts(t *testing.T) {
	b := newQueueBed(t, "configuration-amounts")
	b.addGPUNode("n1", 2, v1alpha1.Rule{Publish: &v1alpha1.PublishPolicy{Counters: v1alpha1.QuotaCounters()}})
	b.addQueues(string(readExample(t, "queues-priority")))
	queue := string(readExample(t, "queues-amounts"))
	for old, two := range map[string]string{"951Gi": "162304Mi", "1584": "264"} { // of two GPUs
		if strings.Count(queue, old) != 1 {
			t.Fatalf("queues-amounts has no quota of %s", old)
		}
		queue = strings.Replace(queue, old, two, 1)
	}
	b.addQueues(queue)
	jobs := b.exampleJobs()

	b.create(jobs["sweep"])
	b.waitsFor("sweep", "use ResourceClaimTemplates")
	for i := range 14 {
		b.submit("backfill", fmt.Sprint("backfill-", i), "mig-1g.10gb.cleave.dev", 1)
	}
	b.eventually("backfill to have all GPUs", map[string]int{"backfill": 14})
	b.uses(map[string]int64{"gpu-memory": 14 * 9984 << 20, "gpu-multiprocessors": 14 * 16})

	b.submit("interactive", "notebook", "gpu.cleave.dev", 1)
	b.eventually("the notebook to have a GPU", map[string]int{"notebook": 1, "backfill": 7})
	events, err := b.kube.EventsV1().Events(queueNamespaces["interactive"]).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool { return e.Reason == "PreemptsForDevices" }) {
		t.Error("the notebook has its GPU, and not by cleave-scheduler's eviction")
	}
	b.uses(map[string]int64{"gpu-memory": (81152 + 8*9984) << 20, "gpu-multiprocessors": 132 + 8*16})
	b.gpus()
	b.ends("interactive", "notebook")
	b.eventually("backfill to return", map[string]int{"backfill": 14})
}
