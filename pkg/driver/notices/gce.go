// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// gce asks the metadata server of Compute Engine.
type gce struct{ service }

const (
	gceFlavor = "Metadata-Flavor"
	// gcePreempted is how long a preempted machine has to stop (cloud.google.com/compute/docs/instances/preemptible, "Preemption
	// process"): it gets the ACPI signal for it when the value changes.
	gcePreempted = 30 * time.Second
	// gceMaintenance is the notice of maintenance that machines with GPUs get (cloud.google.com/compute/docs/gpus/gpu-host-maintenance).
	gceMaintenance = time.Hour
)

// Name implements Source.
func (gce) Name() string { return GCE }

// Poll implements Source. Neither item has a time.
func (g gce) Poll(ctx context.Context) ([]Notice, error) {
	preempted, err := g.get(ctx, "preempted")
	if err != nil {
		return nil, err
	}
	maintenance, err := g.get(ctx, "maintenance-event")
	if err != nil {
		return nil, err
	}
	return parseGCE(preempted, maintenance)
}

// get returns an item of the instance. The server marks its answers: others come from a captive portal or the like.
func (g gce) get(ctx context.Context, item string) (string, error) {
	body, header, err := g.ask(ctx, http.MethodGet, "/computeMetadata/v1/instance/"+item, gceFlavor, "Google")
	switch {
	case errors.Is(err, errNone):
		return "", fmt.Errorf("the metadata server has no instance/%s: is this Google Cloud?", item)
	case err != nil:
		return "", err
	case header.Get(gceFlavor) != "Google":
		return "", fmt.Errorf("the answer for instance/%s is not that of Google's metadata server", item)
	}
	return strings.TrimSpace(string(body)), nil
}

// parseGCE reads whether the instance was preempted, and its maintenance event. Machines that are migrated live go on running.
func parseGCE(preempted, maintenance string) ([]Notice, error) {
	var all []Notice
	switch preempted {
	case "TRUE":
		all = append(all, Notice{ID: "preempted", Kind: Reclaim, Within: gcePreempted, Text: "the instance is preempted"})
	case "FALSE":
	default:
		return nil, fmt.Errorf("instance/preempted is %q, neither TRUE nor FALSE", clean(preempted))
	}
	switch maintenance {
	case "TERMINATE_ON_HOST_MAINTENANCE":
		all = append(all, Notice{ID: "maintenance-event", Kind: Maintenance, Within: gceMaintenance, Text: maintenance})
	case "NONE", "MIGRATE_ON_HOST_MAINTENANCE":
	default:
		return nil, fmt.Errorf("instance/maintenance-event is %q, which is unknown", clean(maintenance))
	}
	return all, nil
}
