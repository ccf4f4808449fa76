// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

const (
	// inFaultAtMost is for how long a server may stay in state FAULT. It is less than the interval of the questions, cleanUpEvery.
	inFaultAtMost = cleanUpEvery - 5*time.Second
	// faultTimeout bounds a question, during which the GPU is locked.
	faultTimeout = 5 * time.Second
	// faultRecheck is when a server is asked for that has logged nothing since the last question.
	faultRecheck = 10 * time.Minute
)

// serverLog is where a server logs its clients and fatal errors (NVIDIA's MPS guide, "Server Log").
const serverLog = "server.log"

// server is what is known of a daemon's server.
type server struct {
	pid    string    // empty if unknown
	fault  time.Time // since when it is in state FAULT; zero if it is not, or did not answer
	asked  time.Time // when it was asked for last
	logged int64     // size of its log then
}

// replaceFaulty replaces a daemon whose server stays in state FAULT. After a fatal error the server takes no client before all those
// that the error hit have exited, which a program that handles the error may never do. Nobody loses work by it: the error ends the
// contexts of all clients of the GPU (NVIDIA's MPS guide, "Error Containment"). The guide excepts only clients on other GPUs, and from
// R610 on those in other static SM partitions; our daemons have one GPU or partition, and no static partitioning (Processes.sandbox,
// Start).
func (s *Supervisor) replaceFaulty(g *gpuState) {
	ctx := s.life
	if !g.runs() || g.daemon.inFault(ctx) < inFaultAtMost {
		return
	}
	g.noteLoss(ctx, fmt.Sprintf("it is ended, as its server %s stays in state FAULT: a fatal error has hit all clients, and some do not exit",
		g.daemon.server.pid))
	if err := g.daemon.end(ctx, g.record.Daemon); err != nil { // before a restart that has to wait, for nobody to join the server
		klog.FromContext(ctx).Error(err, "Ending an MPS control daemon whose server is in state FAULT failed", "gpu", g.device)
	}
	g.restartLater(ctx)
}

// inFault is for how long the server has answered that it is in state FAULT. A question starts a process and adds to the daemon's
// bounded logs, so it is asked when the server has logged something, which it does at a fatal error, or not been asked for long.
func (d *daemon) inFault(ctx context.Context) time.Duration {
	var logged int64
	if info, err := os.Stat(filepath.Join(d.paths.log, serverLog)); err == nil {
		logged = info.Size()
	}
	if d.server.fault.IsZero() && logged == d.server.logged && time.Since(d.server.asked) < faultRecheck {
		return 0
	}
	d.server.asked, d.server.logged = time.Now(), logged
	ctx, cancel := context.WithTimeout(ctx, faultTimeout)
	defer cancel()
	status, err := d.serverStatus(ctx)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("The state of an MPS server is unknown", "gpu", d.GPU, "reason", err.Error())
	}
	if status != "FAULT" {
		d.server.fault = time.Time{}
		return 0
	}
	if d.server.fault.IsZero() {
		d.server.fault = time.Now()
		klog.FromContext(ctx).Info("MPS server takes no clients until those that a fatal error has hit have exited", "gpu", d.GPU,
			"pid", d.server.pid)
	}
	return time.Since(d.server.fault)
}

// serverStatus is the state of the daemon's server; empty if there is none or it is unknown.
func (d *daemon) serverStatus(ctx context.Context) (string, error) {
	if d.server.pid == "" {
		list, err := d.on.Daemons.Ask(ctx, d.Daemon, "get_server_list")
		if err != nil {
			return "", err
		}
		pid, _, _ := strings.Cut(list, "\n") // a daemon has one active server at most
		if _, err := strconv.Atoi(pid); err != nil {
			return "", nil //nolint:nilerr // there is none
		}
		d.server.pid = pid
	}
	status, err := d.on.Daemons.Ask(ctx, d.Daemon, "get_server_status "+d.server.pid)
	switch {
	case err == nil && (status == "FAULT" || status == "ACTIVE" || status == "INITIALIZING"):
		return status, nil
	case err == nil: // it has ended, or an older daemon does not know the command
		err = fmt.Errorf("the MPS control daemon answered %.200q, not a state", status)
	}
	d.server.pid = ""
	return "", err
}
