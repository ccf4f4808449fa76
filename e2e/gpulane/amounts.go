// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// What the two claims are given: a quarter and a half of the multiprocessors, in units of memory.
const (
	smallCores, smallUnits = 25, 4
	largeCores, largeUnits = 50, 8
)

const (
	// rounds of the kernel, a tenth of a second on a whole H200.
	rounds = 200_000
	// longRounds are enough for it to still run while something else happens.
	longRounds = 10 * rounds
	// coresRatio is by how much a kernel has to be faster on twice the multiprocessors.
	coresRatio = 1.3
	// overhead is the part of a limit, in units, that CUDA itself may take of it.
	overhead = 1
)

// UIDs of the claims.
const (
	claimSmall types.UID = "11111111-1111-4111-8111-111111111111"
	claimLarge types.UID = "22222222-2222-4222-8222-222222222222"
	claimOther types.UID = "33333333-3333-4333-8333-333333333333"
)

// clientOf is a program in a container of a claim: what it is given is read from the CDI spec that Cleave writes for the
// claim.
func (s *sharing) clientOf(ctx context.Context, name string, uid types.UID, cores, memory int64, endpoint mps.Endpoint) (client, error) {
	static, err := injection{s.lane}.static()
	if err != nil {
		return client{}, err
	}
	share := &records.Share{
		ID: "share", Kind: gpu.MPS, Shares: 1, Memory: memory, Cores: cores,
		MPS: &records.MPS{ThreadPercentage: cores, Memory: memory, PipeDir: endpoint.PipeDir, ShmDir: endpoint.ShmDir},
	}
	d := &records.Device{Device: s.board.pci.DeviceName() + "-mps", GPU: s.board.pci.DeviceName(), UUID: s.board.uuid, Share: share}
	if err := static.WriteClaim(ctx, &records.Record{Claim: records.Claim{UID: uid}, Devices: []records.Device{*d}}); err != nil {
		return client{}, err
	}
	data, err := os.ReadFile(static.ClaimPath(uid))
	if err != nil {
		return client{}, fmt.Errorf("read the claim's CDI spec: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil || len(spec.Devices) != 1 {
		return client{}, errors.Join(fmt.Errorf("read the claim's CDI spec: it has %d devices", len(spec.Devices)), err)
	}
	edits := spec.Devices[0].ContainerEdits
	c := client{name: name, env: edits.Env}
	for _, m := range edits.Mounts {
		c.mounts = append(c.mounts, mount{m.HostPath, m.ContainerPath})
	}
	return s.only(c), nil
}

// amounts shares a GPU between two claims with different amounts.
func (s *sharing) amounts(ctx context.Context) {
	var endpoint mps.Endpoint
	// As Cleave starts it: the daemon's defaults are what a claim can have at most.
	if s.check("mps", "daemon", func() (_ string, err error) {
		began := time.Now()
		if endpoint, err = s.ensure(ctx, claimSmall, 100, s.board.usable()); err != nil {
			return "", err
		}
		first := time.Since(began)
		again, err := s.ensure(ctx, claimLarge, 100, s.board.usable())
		if err != nil {
			return "", err
		}
		if again != endpoint {
			return "", fmt.Errorf("the second claim got another daemon: %+v, not %+v", again, endpoint)
		}
		return fmt.Sprintf("one for two claims, ready after %d ms; for the second claim after %d ms", first.Milliseconds(),
			(time.Since(began) - first).Milliseconds()), nil
	}) {
		s.note("mps", "daemon's words", func() (string, error) { return s.words(ctx, endpoint), nil })
		if s.cudaWorks {
			s.twoClients(ctx, endpoint)
		}
	}
	s.check("mps", "release", func() (string, error) { return s.release(ctx, claimSmall, claimLarge) })
}

// words are the daemon's answers, as it writes them.
func (s *sharing) words(ctx context.Context, endpoint mps.Endpoint) string {
	var answers []string
	for _, command := range []string{
		"get_default_active_thread_percentage", "get_default_device_pinned_mem_limit " + s.board.uuid,
		"get_default_client_priority", "get_server_list",
	} {
		answers = append(answers, fmt.Sprintf("%s: %q", command, s.control(ctx, endpoint, command)))
	}
	return strings.Join(answers, ", ")
}

// pair are the programs of the two claims.
type pair struct {
	*sharing
	small, large *probe
	spec         client // of the small one
}

// twoClients runs a program of each claim and tries their limits.
func (s *sharing) twoClients(ctx context.Context, endpoint mps.Endpoint) {
	p := &pair{sharing: s}
	defer func() { p.small.end(); p.large.end() }()
	if !s.check("mps", "two clients", func() (_ string, err error) {
		if p.spec, err = s.clientOf(ctx, "small", claimSmall, smallCores, smallUnits*s.unit, endpoint); err != nil {
			return "", err
		}
		large, err := s.clientOf(ctx, "large", claimLarge, largeCores, largeUnits*s.unit, endpoint)
		if err != nil {
			return "", err
		}
		began := time.Now()
		if p.small, err = s.start(ctx, p.spec); err != nil {
			return "", err
		}
		first := time.Since(began)
		if p.large, err = s.start(ctx, large); err != nil {
			return "", err
		}
		return fmt.Sprintf("the first has a context after %d ms, the server's start included, the second after %d ms", first.Milliseconds(),
			(time.Since(began) - first).Milliseconds()), nil
	}) {
		return
	}
	s.check("mps", "cores reported", func() (string, error) { return s.coresSeen(p.small, p.large) })
	s.check("mps", "memory within", func() (string, error) { return p.within(ctx) })
	s.check("mps", "memory over", func() (string, error) { return p.over(ctx) })
	s.check("mps", "neighbour goes on", func() (string, error) { return p.goesOn(ctx) })
	s.note("mps", "seen from outside", func() (string, error) { return p.fromOutside(ctx, endpoint) })
	s.note("mps", "second process", func() (string, error) { return p.secondProcess(ctx) })
	s.check("mps", "cores hold", func() (string, error) { return p.coresHold(ctx) })
}

// reported is how many multiprocessors a program sees.
func (p *probe) reported() int {
	if p.ready.Affinity > 0 {
		return min(p.ready.Multiprocessors, p.ready.Affinity)
	}
	return p.ready.Multiprocessors
}

// isPart reports whether a number of multiprocessors is a percentage of all, as hardware rounds it.
func isPart(have, all, percentage int) bool {
	want := float64(all) * float64(percentage) / 100
	off := float64(have) - want
	return max(off, -off) <= max(2, float64(all)/10)
}

func (s *sharing) coresSeen(small, large *probe) (string, error) {
	all := s.cuda.multiprocessors
	detail := fmt.Sprintf("of %d multiprocessors %d%% are %d (attribute %d, affinity %d) and %d%% are %d (attribute %d, affinity %d)", all,
		smallCores, small.reported(), small.ready.Multiprocessors, small.ready.Affinity,
		largeCores, large.reported(), large.ready.Multiprocessors, large.ready.Affinity)
	if !isPart(small.reported(), all, smallCores) || !isPart(large.reported(), all, largeCores) {
		return detail, errors.New("that is not what was asked for")
	}
	return detail, nil
}

// within takes half of each limit.
func (p *pair) within(ctx context.Context) (string, error) {
	for _, c := range []struct {
		probe *probe
		units int64
	}{{p.small, smallUnits / 2}, {p.large, largeUnits / 2}} {
		a, err := c.probe.take(ctx, c.units*p.unit)
		if err != nil {
			return "", err
		}
		if a.Got != a.Asked {
			return "", fmt.Errorf("%s got %d of %d MiB: %s", c.probe.name, a.Got>>20, a.Asked>>20, a.Name)
		}
	}
	return fmt.Sprintf("%d of %d MiB and %d of %d MiB", smallUnits/2*p.unit>>20, smallUnits*p.unit>>20,
		largeUnits/2*p.unit>>20, largeUnits*p.unit>>20), nil
}

// over has the small one take more than its limit while a kernel of the large one runs.
func (p *pair) over(ctx context.Context) (string, error) {
	if err := p.large.say("work %d", longRounds); err != nil {
		return "", err
	}
	detail, tookErr := p.takeOver(ctx, p.small, smallUnits*p.unit)
	worked, err := p.large.wait(ctx)
	if err == nil && !worked.Right {
		err = errors.New("the large client's kernel computed nonsense meanwhile")
	}
	return detail + fmt.Sprintf("; the large one's kernel ran for %.0f ms meanwhile", worked.MS), errors.Join(tookErr, err)
}

// takeOver takes memory until there is no more, which has to be at a limit, in bytes.
func (s *sharing) takeOver(ctx context.Context, c *probe, limit int64) (string, error) {
	a, err := c.take(ctx, limit+s.unit) // a context may be counted, or not
	if err != nil {
		return "", err
	}
	detail := fmt.Sprintf("with a limit of %d MiB %s got %d MiB in all, then %s", limit>>20, c.name, a.Held>>20, a.Name)
	switch {
	case a.Code != outOfMemory || a.Held > limit:
		return detail, errors.New("the limit does not hold")
	case a.Held < limit-overhead*s.unit:
		return detail, errors.New("that is much less than the limit")
	}
	return detail, nil
}

// goesOn has both go on: the large one takes more and works, the small one works with what it has.
func (p *pair) goesOn(ctx context.Context) (string, error) {
	a, err := p.large.take(ctx, 2*p.unit)
	if err != nil {
		return "", err
	}
	if a.Got != a.Asked {
		return "", fmt.Errorf("the large client got %d of %d MiB more: %s", a.Got>>20, a.Asked>>20, a.Name)
	}
	if _, err := p.large.work(ctx, rounds); err != nil {
		return "", err
	}
	if _, err := p.small.ask(ctx, "drop"); err != nil { // it is at its limit, and a kernel needs some memory
		return "", err
	}
	if _, err := p.small.work(ctx, rounds); err != nil {
		return "", fmt.Errorf("the one that asked for too much: %w", err)
	}
	return "the large one took 2 units more and worked; the one that was refused works, too", nil
}

// fromOutside reports what NVML and the daemon show of the clients.
func (p *pair) fromOutside(ctx context.Context, endpoint mps.Endpoint) (string, error) {
	facts, err := p.askNVML(ctx, "clients")
	if err != nil {
		return "", err
	}
	shown := facts.find(p.board.index, "nvmlDeviceGetComputeRunningProcesses_v3", "")
	underMPS := facts.find(p.board.index, "nvmlDeviceGetMPSComputeRunningProcesses_v3", "")
	server := p.control(ctx, endpoint, "get_server_list")
	for _, command := range []string{"get_server_status ", "get_client_list ", "get_active_thread_percentage "} {
		p.control(ctx, endpoint, command+server)
	}
	p.control(ctx, endpoint, "get_device_pinned_mem_limit "+server+" 0")
	p.control(ctx, endpoint, "ps")
	if p.machine.SMI != "" {
		_, _ = p.commands.run(ctx, driverProgram(p.opts.DriverRoot, p.machine.SMI)) // the transcript has it
	}
	if shown == nil || underMPS == nil {
		return "", errors.New("nvml-probe did not ask")
	}
	return fmt.Sprintf("clients %d and %d, server %s; NVML's compute processes: %s%s, MPS processes: %s%s",
		p.small.ready.PID, p.large.ready.PID, server,
		shown.Meaning, spaced(shown.Value), underMPS.Meaning, spaced(underMPS.Value)), nil
}

// secondProcess runs another program with what the small claim's has: the limit is per process.
func (p *pair) secondProcess(ctx context.Context) (string, error) {
	first, err := p.small.take(ctx, (smallUnits-overhead)*p.unit)
	if err != nil {
		return "", err
	}
	second, err := p.start(ctx, p.spec.with("small-2"))
	if err != nil {
		return "", err
	}
	defer second.end()
	a, err := second.take(ctx, (smallUnits-overhead)*p.unit)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("two processes of one claim with a limit of %d MiB held %d and %d MiB: the limit is per process", smallUnits*p.unit>>20,
		first.Held>>20, a.Held>>20), nil
}

// coresHold compares how long a kernel runs on each part.
func (p *pair) coresHold(ctx context.Context) (string, error) {
	small, err := p.small.fastest(ctx, rounds)
	if err != nil {
		return "", err
	}
	large, err := p.large.fastest(ctx, rounds)
	if err != nil {
		return "", err
	}
	p.report.Facts["kernelMilliseconds"] = map[string]float64{"all": p.cuda.ms, "half": large, "quarter": small}
	detail := fmt.Sprintf("a kernel takes %.1f ms on all multiprocessors, %.1f ms on %d%% and %.1f ms on %d%%", p.cuda.ms, large,
		largeCores, small, smallCores)
	if small < coresRatio*large {
		return detail, errors.New("half of the multiprocessors are not slower: the limit does not hold")
	}
	return detail, nil
}
