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

// Poll implements Source. Neither item has a time. Machines that are migrated live go on running.
func (g gce) Poll(ctx context.Context) ([]Notice, error) {
	preempted, preemptedErr := g.item(ctx, "preempted", map[string]*Notice{
		"FALSE": nil, "TRUE": {ID: "preempted", Kind: Reclaim, Within: gcePreempted, Text: "the instance is preempted"},
	})
	const terminate = "TERMINATE_ON_HOST_MAINTENANCE"
	maintenance, err := g.item(ctx, "maintenance-event", map[string]*Notice{
		"NONE": nil, "MIGRATE_ON_HOST_MAINTENANCE": nil,
		terminate: {ID: "maintenance-event", Kind: Maintenance, Within: gceMaintenance, Text: terminate},
	})
	return append(preempted, maintenance...), errors.Join(preemptedErr, err)
}

// item asks for an item of the instance, of which these values are known.
func (g gce) item(ctx context.Context, name string, known map[string]*Notice) ([]Notice, error) {
	value, err := g.get(ctx, name)
	if err != nil {
		return nil, err
	}
	notice, isKnown := known[value]
	switch {
	case !isKnown:
		return nil, fmt.Errorf("instance/%s is %q, which is unknown", name, clean(value))
	case notice == nil:
		return nil, nil
	}
	return []Notice{*notice}, nil
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
