// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/e2e/history"
)

// plugin answers as the name of a claim says.
type plugin struct {
	drapb.UnimplementedDRAPluginServer
	registerapi.UnimplementedRegistrationServer
	endpoint string
	// asked gets the name of each claim that hangs.
	asked chan string
}

func (p *plugin) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "gpu.example.com", Endpoint: p.endpoint, SupportedVersions: []string{"v1"}}, nil
}

func (p *plugin) NodePrepareResources(ctx context.Context, r *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	answer := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		switch c.Name {
		case "hang":
			p.asked <- c.Name
			<-ctx.Done()
			return nil, ctx.Err()
		case "refuse":
			answer.Claims[c.Uid] = &drapb.NodePrepareResourceResponse{Error: "refused"}
		case "fail":
			return nil, status.Error(codes.Internal, "failed")
		default:
			answer.Claims[c.Uid] = &drapb.NodePrepareResourceResponse{Devices: []*drapb.Device{{DeviceName: "gpu-0", CdiDeviceIds: []string{"a=b"}}}}
		}
	}
	return answer, nil
}

func (p *plugin) NodeUnprepareResources(_ context.Context, r *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		answer.Claims[c.Uid] = &drapb.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}

// bed is a tap with directories of its own.
type bed struct {
	*testing.T
	tap    *Tap
	plugin *plugin
	dir    string
}

// node is the directory of the bed, as kubelet and plugin have it.
const node = "/node"

func (b *bed) host(path string) string { return b.dir + strings.TrimPrefix(path, node) }

func newBed(t *testing.T) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "tap") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "kubelet"), 0o700); err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, dir: dir, plugin: &plugin{endpoint: node + "/dra.sock", asked: make(chan string, 1)}}
	b.tap, err = Start(t.Context(), Options{
		PluginRegistry: node + "/plugin", KubeletRegistry: node + "/kubelet", Dir: node + "/tap", HostPath: b.host,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.tap.Close)
	return b
}

// start serves the plugin, and returns how it is killed: nothing is cleaned up.
func (b *bed) start() (kill func()) {
	b.Helper()
	server := grpc.NewServer()
	drapb.RegisterDRAPluginServer(server, b.plugin)
	registerapi.RegisterRegistrationServer(server, b.plugin)
	for _, path := range []string{b.host(b.plugin.endpoint), filepath.Join(b.dir, "plugin", "reg.sock")} {
		_ = os.Remove(path)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			b.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		go func() { _ = server.Serve(l) }() // until the server stops
	}
	b.Cleanup(server.Stop)
	return server.Stop
}

func (b *bed) dial(path string) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register does what a kubelet does with a new registration, and returns a client of its endpoint.
func (b *bed) register(ctx context.Context) drapb.DRAPluginClient {
	b.Helper()
	client := registerapi.NewRegistrationClient(b.dial(filepath.Join(b.dir, "kubelet", "reg.sock")))
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		b.Fatal(err)
	}
	if info.Name != "gpu.example.com" || info.Endpoint == b.plugin.endpoint || !strings.HasPrefix(info.Endpoint, node) {
		b.Fatalf("registration: %v", info)
	}
	return drapb.NewDRAPluginClient(b.dial(b.host(info.Endpoint)))
}

// awaitGone waits until the plugin is not registered with the kubelet any more.
func (b *bed) awaitGone(ctx context.Context) {
	b.Helper()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(filepath.Join(b.dir, "kubelet", "reg.sock")); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.Fatal("the registration stays")
		}
	}
}

func claimsOf(names ...string) *drapb.NodePrepareResourcesRequest {
	r := &drapb.NodePrepareResourcesRequest{}
	for _, n := range names {
		r.Claims = append(r.Claims, &drapb.Claim{Uid: "uid-" + n, Name: n})
	}
	return r
}

// stop ends the recording and returns the calls and answers of it.
func stop(t *testing.T, r *history.Recorder) []history.Fact {
	t.Helper()
	h, err := r.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var facts []history.Fact
	for _, e := range h.Events[1:] {
		facts = append(facts, e.Fact)
	}
	return facts
}

func TestTap(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := newBed(t)
	r, err := history.Record(ctx, history.Sources{File: filepath.Join(t.TempDir(), "history"), Of: []history.Source{b.tap}})
	if err != nil {
		t.Fatal(err)
	}
	kill := b.start()
	client := b.register(ctx)
	answer, err := client.NodePrepareResources(ctx, claimsOf("one", "refuse"))
	if err != nil || answer.Claims["uid-refuse"].Error != "refused" {
		t.Fatalf("%v, %v", answer, err)
	}
	if _, err := client.NodePrepareResources(ctx, claimsOf("fail")); status.Convert(err).Message() != "failed" {
		t.Fatalf("got %v", err)
	}
	if _, err := client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claimsOf("one").Claims}); err != nil {
		t.Fatal(err)
	}
	hangs := make(chan error)
	go func() {
		_, err := client.NodePrepareResources(ctx, claimsOf("hang"))
		hangs <- err
	}()
	<-b.plugin.asked
	kill()
	if err := <-hangs; status.Code(err) != codes.Unavailable {
		t.Errorf("a plugin is killed, and its call ends with %v", err)
	}
	if err := os.Remove(filepath.Join(b.dir, "plugin", "reg.sock")); err != nil {
		t.Fatal(err)
	}
	b.awaitGone(ctx)
	b.start()
	if _, err := b.register(ctx).NodePrepareResources(ctx, claimsOf("one")); err != nil {
		t.Fatal(err)
	}
	one := []history.Prepared{{Device: "gpu-0", CDI: []string{"a=b"}}}
	const c1, c2 = "connection-1", "connection-2"
	want := []history.Fact{
		history.Call{ID: c1 + "/1", Method: history.Prepare, Claim: "uid-one"},
		history.Call{ID: c1 + "/1", Method: history.Prepare, Claim: "uid-refuse"},
		history.Return{ID: c1 + "/1", Method: history.Prepare, Claim: "uid-one", Devices: one},
		history.Return{ID: c1 + "/1", Method: history.Prepare, Claim: "uid-refuse", Error: "refused"},
		history.Call{ID: c1 + "/3", Method: history.Prepare, Claim: "uid-fail"},
		history.Return{ID: c1 + "/3", Method: history.Prepare, Claim: "uid-fail", Error: "failed"},
		history.Call{ID: c1 + "/5", Method: history.Unprepare, Claim: "uid-one"},
		history.Return{ID: c1 + "/5", Method: history.Unprepare, Claim: "uid-one"},
		history.Call{ID: c1 + "/7", Method: history.Prepare, Claim: "uid-hang"},
		history.Call{ID: c2 + "/1", Method: history.Prepare, Claim: "uid-one"},
		history.Return{ID: c2 + "/1", Method: history.Prepare, Claim: "uid-one", Devices: one},
	}
	if diff := cmp.Diff(want, stop(t, r)); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
}
