// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/counting"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/tools/explain"
	"github.com/cleave-dra/cleave/pkg/tools/inspect/models"
)

// On a cluster whose release drops counters, nodes offer no partitions: the page says that, and what the admin does, as the command does.
func TestSource_ExplainNotCounted(t *testing.T) {
	class := classOf("mig-1g.10gb.cleave.dev", testDriver)
	class.Spec.Selectors[0].CEL.Expression += ` && device.attributes["gpu.cleave.dev"].type == "mig"`
	client := fake.NewClientset(class, machineOf("a"), claimed("dev", "waits", class.Name, ""))
	gpus, err := models.Load("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	counted := counting.Of(version.MustParseGeneric("1.35.4"), false, false)
	offer := policy.Apply(&v1alpha1.NodePolicy{}, gpus, policy.Capabilities{Counters: counted.Counters, Shares: counted.Shares})
	for _, slice := range nodeslices.Objects(offer, testDriver, "a").Items {
		if err := client.Tracker().Add(&slice); err != nil {
			t.Fatal(err)
		}
	}
	s := running(t, client, Config{})
	s.answered(t.Context(), &apiversion.Info{GitVersion: "v1.35.4"}, nil)
	got, err := s.Explain(t.Context(), []string{"dev/waits"})
	if err != nil {
		t.Fatal(err)
	}
	e := got["dev/waits"]
	if e == nil || e.Outlook != explain.Never || len(e.Limits) != 2 || e.Limits[0].Kind != explain.NotCounted ||
		!strings.Contains(e.Limits[0].Message, "turn on the feature gate DRAPartitionableDevices of API server and scheduler") {
		t.Errorf("got %+v", e)
	}
}
