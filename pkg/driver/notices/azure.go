// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// azure asks the instance metadata service of Azure for scheduled events (learn.microsoft.com/azure/virtual-machines/linux/
// scheduled-events). The first request turns them on for the machine, and may take two minutes, as may the second.
type azure struct {
	service
	now func() time.Time
	// name is this machine's: events are those of all machines of its scale set's placement group.
	name string
}

const (
	azureEvents = "/metadata/scheduledevents?api-version=2020-07-01"
	azureName   = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
	maxName     = 255
	// azurePreempt is the least notice of Preempt.
	azurePreempt = 30 * time.Second
)

// azureKinds are the types of events that end what runs. Freeze is left out: the machine pauses for seconds and loses nothing.
var azureKinds = map[string]Kind{"Preempt": Reclaim, "Terminate": Reclaim, "Reboot": Maintenance, "Redeploy": Maintenance}

// azureTimes are the forms of a time: a day of one digit is allowed (RFC 1123, 5.2.14).
var azureTimes = []string{time.RFC1123, "Mon, 2 Jan 2006 15:04:05 MST"}

// Name implements Source.
func (*azure) Name() string { return Azure }

// Poll implements Source. It approves no event: that would start it at once.
func (a *azure) Poll(ctx context.Context) ([]Notice, error) {
	if a.name == "" {
		name, _, err := a.ask(ctx, http.MethodGet, azureName, "Metadata", "true")
		if err != nil {
			return nil, fmt.Errorf("get the name of the machine: %w", err)
		}
		if text := strings.TrimSpace(string(name)); text == "" || len(text) > maxName || text != clean(text) {
			return nil, fmt.Errorf("get the name of the machine: %q is none", clean(text))
		}
		a.name = strings.TrimSpace(string(name))
	}
	body, _, err := a.ask(ctx, http.MethodGet, azureEvents, "Metadata", "true")
	if err != nil {
		return nil, err
	}
	return a.parse(body)
}

// parse reads scheduled events.
func (a *azure) parse(body []byte) ([]Notice, error) {
	var document struct {
		Events []struct {
			EventID                                        string `json:"EventId"`
			EventType, EventStatus, NotBefore, Description string
			Resources                                      []string
		}
	}
	if err := json.Unmarshal(body, &document); err != nil {
		return nil, fmt.Errorf("read the scheduled events: %w", err)
	}
	if document.Events == nil {
		return nil, fmt.Errorf("read the scheduled events: there is no list of events")
	}
	var all []Notice
	var errs []error
	for _, e := range document.Events {
		kind, known := azureKinds[e.EventType]
		if !known || !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, a.name) }) {
			continue
		}
		n := Notice{ID: e.EventID, Kind: kind, Text: e.EventType + " " + e.EventStatus + " " + e.Description}
		if e.NotBefore != "" { // empty once it has started
			at, err := timeOf(e.NotBefore, a.now(), azureTimes...)
			if err != nil {
				errs = append(errs, fmt.Errorf("read the scheduled event %s: %w", clean(e.EventID), err))
				continue
			}
			n.At = at
		} else {
			n.Within = time.Second
		}
		all = append(all, n)
	}
	return all, errors.Join(errs...)
}
