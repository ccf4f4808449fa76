// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/cleave-dra/cleave/e2e/conformance/driver"
	"github.com/cleave-dra/cleave/e2e/conformance/kube"
)

// healths are what cases of the health stream need.
type healths struct{ *bench }

// maxMessage is the length at which the kubelet cuts (dra-health/v1/api.proto).
const maxMessage = 1024

var healthCases = []Case{
	{
		Name:   "health/report",
		Rule:   "The health stream begins with a report whose devices are published, each once, with a time that has passed.",
		Source: "k8s.io/kubelet/pkg/apis/dra-health/v1 DeviceHealth; KEP-4680",
		run:    healthReport,
	},
	{
		Name:   "health/complete",
		Rule:   "The report has all devices of the driver; the health of others becomes Unknown.",
		Source: "dra-health/v1 NodeWatchResourcesResponse: \"This should be a complete list for the driver\"; KEP-4680",
		run:    healthComplete,
	},
	{
		Name:   "health/again",
		Rule:   "Each registered health service serves a stream after another one was closed, as when the kubelet restarts.",
		Source: "kubeletplugin.DRAPlugin.WatchHealthStatus: \"when the kubelet reconnects\"; KEP-4680",
		run:    healthAgain,
	},
	{
		Name:   "health/damaged",
		Rule:   "A device that becomes unhealthy is reported as Unhealthy, and as Healthy when it is again.",
		Source: "dra-health/v1 HealthStatus; KEP-4680",
		run:    healthDamaged,
	},
}

// healthServices are those that the driver registered; none skips the case.
func (b healths) healthServices(ctx context.Context) (*driver.Conn, []string, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	offered := conn.HealthOffered()
	if len(offered) == 0 {
		return nil, nil, skipf("the driver registers none of %q", driver.HealthServices())
	}
	return conn, offered, nil
}

// firstReport opens a stream, reads its first report and closes it.
func (b healths) firstReport(ctx context.Context, conn *driver.Conn, service string) ([]*healthpb.DeviceHealth, error) {
	ctx, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	next, err := conn.Health(ctx, service)
	if err != nil {
		return nil, err
	}
	return next()
}

// reported is the first report of the newest service, and what is published.
func (b healths) reported(ctx context.Context) (service string, report []*healthpb.DeviceHealth, pools []kube.Pool, err error) {
	conn, offered, err := b.healthServices(ctx)
	if err != nil {
		return "", nil, nil, err
	}
	if report, err = b.firstReport(ctx, conn, offered[0]); err != nil {
		return "", nil, nil, err
	}
	pools, err = b.pools(ctx)
	return offered[0], report, pools, err
}

func healthReport(ctx context.Context, b *bench) (string, error) {
	service, report, pools, err := healths{b}.reported(ctx)
	if err != nil {
		return "", err
	}
	seen := map[string]bool{}
	for _, d := range report {
		name := d.GetDevice().GetPoolName() + "/" + d.GetDevice().GetDeviceName()
		if seen[name] {
			return "", fmt.Errorf("device %s is reported twice", name)
		}
		seen[name] = true
		if err := checkHealth(d, published(pools), time.Now()); err != nil {
			return "", fmt.Errorf("device %s: %w", name, err)
		}
	}
	return fmt.Sprintf("%d devices by %s", len(report), service), nil
}

// published are the devices of all pools, as pool/device.
func published(pools []kube.Pool) []string {
	var all []string
	for _, p := range pools {
		for _, d := range p.Devices() {
			all = append(all, p.Name+"/"+d.Name)
		}
	}
	slices.Sort(all)
	return all
}

func checkHealth(d *healthpb.DeviceHealth, published []string, now time.Time) error {
	if _, ok := slices.BinarySearch(published, d.GetDevice().GetPoolName()+"/"+d.GetDevice().GetDeviceName()); !ok {
		return errors.New("it is reported and not published")
	}
	if _, known := healthpb.HealthStatus_name[int32(d.Health)]; !known {
		return fmt.Errorf("its health is %d, which is none", d.Health)
	}
	if updated := time.Unix(d.LastUpdatedTime, 0); d.LastUpdatedTime <= 0 || updated.After(now.Add(skew)) {
		return fmt.Errorf("its health was determined at %s", updated.UTC())
	}
	if length := utf8.RuneCountInString(d.Message); length > maxMessage {
		return fmt.Errorf("its message has %d characters, and the kubelet cuts at %d", length, maxMessage)
	}
	return nil
}

func healthComplete(ctx context.Context, b *bench) (string, error) {
	_, report, pools, err := healths{b}.reported(ctx)
	if err != nil {
		return "", err
	}
	all := published(pools)
	missing := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return slices.ContainsFunc(report, func(d *healthpb.DeviceHealth) bool {
			return d.GetDevice().GetPoolName()+"/"+d.GetDevice().GetDeviceName() == name
		})
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("%d of %d devices are not in the report, %s among them", len(missing), len(all), missing[0])
	}
	return fmt.Sprintf("%d devices", len(all)), nil
}

func healthAgain(ctx context.Context, b *bench) (string, error) {
	conn, offered, err := healths{b}.healthServices(ctx)
	if err != nil {
		return "", err
	}
	for range 2 {
		for _, service := range offered {
			if _, err := (healths{b}).firstReport(ctx, conn, service); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("twice by each of %q", offered), nil
}

func healthDamaged(ctx context.Context, b *bench) (string, error) {
	conn, offered, err := healths{b}.healthServices(ctx)
	if err != nil {
		return "", err
	}
	pool, device, repair, err := damages{b}.damage(ctx)
	if err != nil {
		return "", err
	}
	message, err := healths{b}.waitHealth(ctx, conn, offered[0], pool, device, healthpb.HealthStatus_UNHEALTHY)
	if err != nil {
		return "", err
	}
	if err := repair(ctx); err != nil {
		return "", err
	}
	if _, err := (healths{b}).waitHealth(ctx, conn, offered[0], pool, device, healthpb.HealthStatus_HEALTHY); err != nil {
		return "", err
	}
	return fmt.Sprintf("Unhealthy with %q, then Healthy", message), nil
}

// waitHealth reads a stream until a device has a health, and returns its message.
func (b healths) waitHealth(ctx context.Context, conn *driver.Conn, service, pool, device string,
	want healthpb.HealthStatus) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, b.SettleTimeout)
	defer cancel()
	next, err := conn.Health(ctx, service)
	if err != nil {
		return "", err
	}
	last := "not reported"
	for {
		report, err := next()
		if err != nil {
			return "", fmt.Errorf("wait for device %s to be %s, last seen %s: %w", device, want, last, err)
		}
		for _, d := range report {
			if d.GetDevice().GetPoolName() == pool && d.GetDevice().GetDeviceName() == device {
				if last = d.Health.String(); d.Health == want {
					return d.Message, nil
				}
			}
		}
	}
}
