// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// clusterDir is the cluster's directory, of these tests alone.
	clusterDir = "/var/lib/cleave-chart"
	model      = "hgx-h100"
)

// bed is a cluster without Cleave, whose node has simulated GPUs.
type bed struct {
	cluster *cluster.Cluster
	kube    kubernetes.Interface
	client  workload.Client
	// Bed is nil until it is prepared.
	*release.Bed
	// cgroups is where cgroup v2 is mounted, empty if nowhere.
	cgroups string
	// api forwards pods' connections to the API server.
	api *forwarder
}

// env is set before the first test runs; nil where tests run without a cluster.
var env *bed

func TestMain(m *testing.M) {
	if os.Getenv("CLEAVE_E2E") != "1" {
		os.Exit(m.Run())
	}
	os.Exit(cluster.RunTests(m, func(ctx context.Context) (err error) {
		env, err = setUp(ctx)
		return err
	}, func() error {
		if env != nil && env.api != nil {
			env.api.stop()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		return cluster.Down(ctx, clusterDir)
	}))
}

func setUp(ctx context.Context) (*bed, error) {
	source, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	client, err := workload.Up(ctx, cluster.Options{
		Source: source, Dir: clusterDir, Output: os.Stdout, NodeLabels: map[string]string{release.NodeLabel: "true"},
		// Older versions of the API, which admission must not pass over.
		RuntimeConfig: []string{"resource.k8s.io/v1beta1=true", "resource.k8s.io/v1beta2=true"},
	})
	if err != nil {
		return nil, err
	}
	b := &bed{cluster: client.Cluster, kube: client.Kube, client: client, cgroups: cgroup2()}
	if err := workload.Create(ctx, b.kube, "", []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}); err != nil {
		return nil, err
	}
	if b.Bed, err = release.Prepare(ctx, b.cluster, source, model); err != nil {
		return nil, err
	}
	b.api, err = forward(ctx, cluster.PodGateway, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.cluster.APIServerPort())))
	return b, err
}

// onCluster bounds a test that needs the cluster, and skips it where there is none.
func onCluster(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if env == nil {
		t.Skip("CLEAVE_E2E=1 runs this, as root, on a local Kubernetes of its own (make e2e)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// cgroup2 is where the cgroup v2 file system is mounted here.
func cgroup2() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC && unix.Access(dir, unix.W_OK) == nil {
			return dir
		}
	}
	return ""
}

// values of a release that works in the cluster. Pods reach the API server where it is forwarded.
func (b *bed) values(privileged bool) string {
	return b.Values(release.Settings{APIHost: cluster.PodGateway, APIPort: b.api.port, Cgroups: b.cgroups, Unprivileged: !privileged})
}

// forwarder passes connections on.
type forwarder struct {
	listener net.Listener
	port     string
	to       string
	wg       sync.WaitGroup
}

// forward listens on an address of this machine, which it need not have yet.
func forward(ctx context.Context, address, to string) (*forwarder, error) {
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }), err)
	}}
	listener, err := free.Listen(ctx, "tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for pods that want the API server: %w", err)
	}
	f := &forwarder{listener: listener, to: to}
	_, f.port, _ = net.SplitHostPort(listener.Addr().String())
	f.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go f.pass(c) // ends with the connection
		}
	})
	return f, nil
}

func (f *forwarder) pass(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("tcp", f.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[1], way[0])
			ended <- struct{}{}
		}()
	}
	<-ended
}

func (f *forwarder) stop() {
	_ = f.listener.Close()
	f.wg.Wait()
}
