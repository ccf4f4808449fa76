// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

// Runtime is a container runtime that serves the CRI.
type Runtime struct {
	Socket string
}

// Run reports until ctx ends.
func (c Runtime) Run(ctx context.Context, r *history.Recorder, ready func()) error {
	conn, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return describe("containers", err)
	}
	defer func() { _ = conn.Close() }()
	w := &containers{client: runtimeapi.NewRuntimeServiceClient(conn), recorder: r, running: map[string]history.Container{}}
	for ctx.Err() == nil {
		err := w.follow(ctx, ready)
		if w.blind == nil {
			w.blind = new(time.Duration)
			if w.seen { // else since the start
				*w.blind = r.Clock().Now()
			}
		}
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// containers reports which start and end.
type containers struct {
	client   runtimeapi.RuntimeServiceClient
	recorder *history.Recorder
	// running are those that are reported as started and not as ended.
	running map[string]history.Container
	seen    bool
	// opened is when the stream of events was opened that is followed now.
	opened time.Duration
	// blind is since when nothing was seen.
	blind *time.Duration
}

// follow reports events until the stream breaks.
func (w *containers) follow(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.opened = w.recorder.Clock().Now()
	stream, err := w.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return err
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 1)
	failed := make(chan error, 1)
	go func() { // ends with ctx
		for {
			e, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	// What happens while this looks comes as an event afterwards, and is known by then.
	if err := w.look(ctx); err != nil {
		return err
	}
	ready()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case e := <-events:
			w.handle(e)
		}
	}
}

// look reports the differences between what runs and what was known to.
func (w *containers) look(ctx context.Context) error {
	listed, err := w.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return err
	}
	at := w.recorder.Clock().Now()
	if !w.seen {
		at = 0
	}
	runs := map[string]bool{}
	slices.SortFunc(listed.Containers, func(a, b *runtimeapi.Container) int { return int(min(max(a.CreatedAt-b.CreatedAt, -1), 1)) })
	for _, c := range listed.Containers {
		fact := history.Container{ID: c.Id, Name: c.GetMetadata().GetName(), Pod: c.Labels["io.kubernetes.pod.uid"]}
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			runs[c.Id] = true
			w.started(at, fact)
		}
	}
	var ended []string
	for id := range w.running {
		if !runs[id] {
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	for _, id := range ended {
		w.ended(at, id)
	}
	if w.seen && w.blind != nil {
		w.recorder.AddAt(at, history.Gap{Source: history.SourceRuntime, From: *w.blind})
	}
	w.seen, w.blind = true, nil
	return nil
}

func (w *containers) started(at time.Duration, fact history.Container) {
	if _, known := w.running[fact.ID]; known {
		return
	}
	fact.State = history.ContainerStarted
	w.running[fact.ID] = fact
	w.recorder.AddAt(at, fact)
}

func (w *containers) ended(at time.Duration, id string) {
	fact, known := w.running[id]
	if !known {
		return
	}
	delete(w.running, id)
	fact.State = history.ContainerEnded
	w.recorder.AddAt(at, fact)
}

// handle reports an event, at the time that the runtime gives it: it may come after the kubelet has acted on it.
func (w *containers) handle(e *runtimeapi.ContainerEventResponse) {
	now := w.recorder.Clock().Now()
	at := w.recorder.Clock().AtWall(time.Unix(0, e.CreatedAt))
	switch e.ContainerEventType {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if e.ContainerId == e.GetPodSandboxStatus().GetId() {
			return
		}
		if at < w.opened { // containerd keeps up to 1,000 events for the first who asks; look has found what still runs
			return
		}
		if at > now { // the wall clock was set
			at = now
		}
		fact := history.Container{ID: e.ContainerId, Pod: e.GetPodSandboxStatus().GetMetadata().GetUid()}
		for _, s := range e.ContainersStatuses {
			if s.Id == e.ContainerId {
				fact.Name = s.GetMetadata().GetName()
			}
		}
		w.started(at, fact)
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		if at > now || now-at > time.Minute { // the wall clock was set
			at = now
		}
		w.ended(at, e.ContainerId)
	}
}
