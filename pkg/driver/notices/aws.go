// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// aws asks the instance metadata service of Amazon EC2, version 2, which works where version 1 is off, too
// (docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html).
type aws struct {
	service
	now   func() time.Time
	token string
	// renew is when the token is replaced.
	renew time.Time
}

const (
	awsTokenHeader = "X-aws-ec2-metadata-token" //nolint:gosec // the name of a header
	awsTokenTTL    = "21600"                    // seconds, the longest
	awsTokenFor    = 5 * time.Hour
	maxToken       = 1024
)

// Name implements Source.
func (*aws) Name() string { return AWS }

// Poll implements Source.
func (a *aws) Poll(ctx context.Context) ([]Notice, error) {
	all, err := a.poll(ctx)
	if status := statusError(0); errors.As(err, &status) && status == http.StatusUnauthorized {
		a.token = "" // the token has expired
		all, err = a.poll(ctx)
	}
	return all, err
}

func (a *aws) poll(ctx context.Context) ([]Notice, error) {
	if err := a.authenticate(ctx); err != nil {
		return nil, err
	}
	spot, spotErr := a.item(ctx, "/latest/meta-data/spot/instance-action", a.spot)
	scheduled, err := a.item(ctx, "/latest/meta-data/events/maintenance/scheduled", a.scheduled)
	return append(spot, scheduled...), errors.Join(spotErr, err)
}

// authenticate gets a token, unless there is one.
func (a *aws) authenticate(ctx context.Context) error {
	if a.token != "" && a.now().Before(a.renew) {
		return nil
	}
	token, _, err := a.ask(ctx, http.MethodPut, "/latest/api/token", awsTokenHeader+"-ttl-seconds", awsTokenTTL)
	if err != nil {
		return fmt.Errorf("get a token of the instance metadata service: %w", err)
	}
	if text := string(token); text == "" || len(text) > maxToken || clean(text) == "" {
		return fmt.Errorf("get a token of the instance metadata service: the answer is no token")
	}
	a.token, a.renew = string(token), a.now().Add(awsTokenFor)
	return nil
}

// item asks for an item and reads it. If it does not exist, there is no notice.
func (a *aws) item(ctx context.Context, path string, read func(body []byte) ([]Notice, error)) ([]Notice, error) {
	body, _, err := a.ask(ctx, http.MethodGet, path, awsTokenHeader, a.token)
	if errors.Is(err, errNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return read(body)
}

// spot reads an interruption of a spot instance ("Spot Instance interruption notices", .../spot-instance-termination-notices.html).
// A recommendation to rebalance is left out: it announces nothing, and may stand for good.
func (a *aws) spot(body []byte) ([]Notice, error) {
	var n struct{ Action, Time string }
	if err := json.Unmarshal(body, &n); err != nil {
		return nil, fmt.Errorf("read the spot interruption notice: %w", err)
	}
	at, err := timeOf(n.Time, a.now(), time.RFC3339)
	if err != nil {
		return nil, fmt.Errorf("read the spot interruption notice: %w", err)
	}
	return []Notice{{ID: "spot", Kind: Reclaim, At: at, Text: "spot interruption, " + n.Action}}, nil
}

// scheduled reads scheduled events ("View scheduled events", .../viewing_scheduled_events.html).
func (a *aws) scheduled(body []byte) (all []Notice, err error) {
	if len(body) == 0 {
		return nil, nil
	}
	var events []struct {
		NotBefore, Code, Description, State string
		EventID                             string `json:"EventId"`
	}
	if err := json.Unmarshal(body, &events); err != nil {
		return nil, fmt.Errorf("read the scheduled events: %w", err)
	}
	for _, e := range events {
		if e.State != "active" { // completed or canceled
			continue
		}
		at, badTime := timeOf(e.NotBefore, a.now(), "2 Jan 2006 15:04:05 MST")
		if badTime != nil {
			err = errors.Join(err, fmt.Errorf("read the scheduled event %s: %w", clean(e.EventID), badTime))
			continue
		}
		all = append(all, Notice{ID: e.EventID, Kind: Maintenance, At: at, Text: e.Code + ", " + e.Description})
	}
	return all, err
}
