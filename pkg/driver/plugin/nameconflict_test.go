// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
)

// registrar is a plugin's registration server.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	name string
	err  error
	hang bool // it ends a call when nobody waits any more
}

func (r registrar) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if r.hang {
		<-ctx.Done()
		return nil, ctx.Err() // an answer might just be in time
	}
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: r.name, SupportedVersions: []string{"v1.DRAPlugin"}}, r.err
}

// register serves a registrar at a socket until stop.
func register(t *testing.T, socket string, r registrar, options ...grpc.ServerOption) (stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	registerapi.RegisterRegistrationServer(server, r)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = func() { server.Stop(); <-done }
	t.Cleanup(stop)
	return stop
}

// compatibleService is a service of NVIDIA's name on node-1, with its events.
func compatibleService(t *testing.T, objects ...runtime.Object) (*service, *record.FakeRecorder) {
	t.Helper()
	recorder := record.NewFakeRecorder(10)
	s := newService(validConfig())
	s.client, s.events = fake.NewClientset(objects...), cluster.NewEventsWith(recorder, "n")
	s.config.DriverName, s.config.RegistryDir, s.config.DriverRetry = "gpu.nvidia.com", shortDir(t), 5*time.Millisecond
	return s, recorder
}

// allocatedClaim is a claim with a pod that has a device.
func allocatedClaim(name, driver, pool, device string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Driver: driver, Pool: pool, Device: device}},
			}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod"}},
		},
	}
}

func otherSlice(name, driver string, devices ...string) *resourceapi.ResourceSlice {
	node := "node-1"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node}}
	for _, d := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: d})
	}
	return slice
}

// counterSlice is a slice of node-1 with a counter set.
func counterSlice(driver, set string) *resourceapi.ResourceSlice {
	slice := otherSlice("counters", driver)
	slice.Spec.SharedCounters = []resourceapi.CounterSet{{Name: set}}
	return slice
}

func TestNameConflict_Find(t *testing.T) {
	const nvidias, ours = "gpu.nvidia.com", "gpu-0000-1b-00-0"
	elsewhere, ended := otherSlice("a", nvidias, "gpu-0"), allocatedClaim("ended", nvidias, "node-1", "gpu-0")
	*elsewhere.Spec.NodeName = "node-2"
	ended.Status.ReservedFor = nil
	tests := map[string]struct {
		object runtime.Object
		want   []string // nil: nobody
	}{
		"nothing":                        {nil, nil},
		"its slice":                      {otherSlice("a", nvidias, "gpu-0"), []string{"ResourceSlice a", "device gpu-0", "take NVIDIA's DRA driver off"}},
		"its partitions":                 {otherSlice("a", nvidias, "gpu-0-mig-1g10gb-19-0"), []string{"gpu-0-mig-1g10gb-19-0"}},
		"one of its devices among ours":  {otherSlice("a", nvidias, ours, "gpu-vfio-0"), []string{"gpu-vfio-0"}},
		"its counters":                   {counterSlice(nvidias, "gpu-0-counter-set"), []string{"counter set gpu-0-counter-set"}},
		"its slice of another node":      {elsewhere, nil},
		"a slice of another driver":      {otherSlice("a", "gpu.example.com", "gpu-0"), nil},
		"an empty slice":                 {otherSlice("a", nvidias), nil},
		"ours":                           {otherSlice("a", nvidias, ours, ours+"-mig-19-6", ours+"-mps"), nil},
		"ours, in a large domain":        {otherSlice("a", nvidias, "gpu-00010000-1b-00-0"), nil},
		"our counters":                   {counterSlice(nvidias, ours), nil},
		"its claim":                      {allocatedClaim("c", nvidias, "node-1", "gpu-3"), []string{"ns/c (device gpu-3)", "drain the node"}},
		"its claim, whose pods are gone": {ended, nil},
		"its claim on another node":      {allocatedClaim("c", nvidias, "node-2", "gpu-3"), nil},
		"our claim":                      {allocatedClaim("c", nvidias, "node-1", ours+"-mig-19-6"), nil},
		"a claim of another driver":      {allocatedClaim("c", "gpu.example.com", "node-1", "gpu-3"), nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.object != nil {
				objects = append(objects, tt.object)
			}
			s, _ := compatibleService(t, objects...)
			checkNameConflict(t, s.nameConflict().find(t.Context()), tt.want)
		})
	}
}

func checkNameConflict(t *testing.T, err error, want []string) {
	t.Helper()
	if (err == nil) != (want == nil) {
		t.Errorf("got %v, want it to say %q", err, want)
	}
	for _, w := range want {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want %q said", err, w)
		}
	}
}

func TestNameConflict_Plugin(t *testing.T) {
	ours, _ := compatibleService(t)
	tests := map[string]struct {
		socket  string
		plugin  registrar
		options []grpc.ServerOption
		want    []string // nil: nobody
	}{
		"NVIDIA's":           {"gpu.nvidia.com-reg.sock", registrar{name: "gpu.nvidia.com"}, nil, []string{"another driver named gpu.nvidia.com", "gpu.nvidia.com-reg.sock", "take NVIDIA's DRA driver off"}},
		"NVIDIA's, of a pod": {"gpu.nvidia.com-5e1d-reg.sock", registrar{name: "gpu.nvidia.com"}, nil, []string{"gpu.nvidia.com-5e1d-reg.sock"}},
		"by a hash":          {"dra-x7dk2-reg.sock", registrar{name: "gpu.nvidia.com"}, nil, []string{"dra-x7dk2-reg.sock"}},
		"ours":               {"gpu.nvidia.com-5e1d-reg.sock", registrar{name: "gpu.nvidia.com"}, []grpc.ServerOption{grpc.UnaryInterceptor(ours.kubelet.noteRegistration)}, nil},
		"its other plugin":   {"gpu.nvidia.com-domain-reg.sock", registrar{name: "compute-domain.nvidia.com"}, nil, nil},
		"another driver's":   {"nic.example.com-reg.sock", registrar{name: "nic.example.com"}, nil, nil},
		"silent":             {"gpu.nvidia.com-reg.sock", registrar{err: errors.New("not now")}, nil, []string{"does not answer", "not now"}},
		"hanging":            {"gpu.nvidia.com-reg.sock", registrar{hang: true}, nil, []string{"does not answer"}},
		"silent, by a hash":  {"dra-x7dk2-reg.sock", registrar{err: errors.New("not now")}, nil, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, _ := compatibleService(t)
			stop := register(t, filepath.Join(s.config.RegistryDir, tt.socket), tt.plugin, tt.options...)
			checkNameConflict(t, s.nameConflict().find(t.Context()), tt.want)
			stop()
			checkNameConflict(t, s.nameConflict().find(t.Context()), nil)
		})
	}
}

func TestNameConflict_StaleSocket(t *testing.T) {
	s, _ := compatibleService(t)
	path := filepath.Join(s.config.RegistryDir, "gpu.nvidia.com-reg.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	checkNameConflict(t, s.nameConflict().find(t.Context()), nil)
	s.config.RegistryDir += "/missing"
	checkNameConflict(t, s.nameConflict().find(t.Context()), nil)
}

// What cannot be seen may be there.
func TestNameConflict_APIServerError(t *testing.T) {
	for _, resource := range []string{"resourceslices", "resourceclaims"} {
		s, _ := compatibleService(t)
		s.client.(*fake.Clientset).PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no route to host")
		})
		checkNameConflict(t, s.nameConflict().find(t.Context()), []string{"no route to host", "gpu.nvidia.com"})
	}
}

func TestAwaitName(t *testing.T) {
	s, recorder := compatibleService(t)
	stop := register(t, filepath.Join(s.config.RegistryDir, "gpu.nvidia.com-reg.sock"), registrar{name: "gpu.nvidia.com"})
	alone := make(chan bool)
	go func() { alone <- s.awaitName(t.Context()) }()
	if event := <-recorder.Events; !strings.Contains(event, reasonNameConflict) || !strings.Contains(event, "serves nothing on this node") {
		t.Errorf("got event %q", event)
	}
	if err := s.ready.err(); err == nil || !strings.Contains(err.Error(), "nothing is served: another driver named gpu.nvidia.com") {
		t.Errorf("ready: %v", err)
	}
	select {
	case <-alone:
		t.Fatal("the other driver is there, and it was not waited for")
	default:
	}
	stop()
	if !<-alone {
		t.Error("the other driver is gone, and it goes on waiting")
	}
	if err := s.ready.err(); strings.Contains(err.Error(), "another driver") {
		t.Errorf("ready: %v", err)
	}
	if len(recorder.Events) > 0 {
		t.Errorf("reported more than once: %s", <-recorder.Events)
	}
}

// For as long as a pod of the node has a claim of the other driver, that claim is read, less and less often, and not all others.
func TestAwaitName_Claims(t *testing.T) {
	s, recorder := compatibleService(t, allocatedClaim("c", "gpu.nvidia.com", "node-1", "gpu-3"))
	s.config.DriverRetry = 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		client := s.client.(*fake.Clientset)
		alone := make(chan bool)
		go func() { alone <- s.awaitName(t.Context()) }()
		<-time.After(time.Hour)
		if lists, gets := asked(client); lists != 1 || gets < 90 || gets > 190 {
			t.Errorf("in an hour all claims are listed %d times, and that of the node is read %d times; want 1, and about 130", lists, gets)
		}
		deleteClaim(t, client, "c")
		if !<-alone || len(recorder.Events) != 1 {
			t.Errorf("waited in vain, or %d Events, want 1", len(recorder.Events))
		}
	})
}

func TestAwaitName_ContextCanceled(t *testing.T) {
	s, recorder := compatibleService(t, otherSlice("a", "gpu.nvidia.com", "gpu-0"))
	ctx, cancel := context.WithCancel(t.Context())
	alone := make(chan bool)
	go func() { alone <- s.awaitName(ctx) }()
	<-recorder.Events
	cancel()
	if <-alone {
		t.Error("the plugin ends, and it serves")
	}
}

func TestAwaitName_OwnName(t *testing.T) {
	s, _ := compatibleService(t, otherSlice("a", "gpu.cleave.dev", "gpu-0"))
	s.config.DriverName = "gpu.cleave.dev"
	if !s.awaitName(t.Context()) {
		t.Error("it does not serve")
	}
}

// The directory of the plugin is that of the other driver, too.
func TestSharedFiles(t *testing.T) {
	s, _ := compatibleService(t)
	checkNameConflict(t, s.sharedFiles(t.Context()), []string{"never served"})
	s.helper = &kubeletplugin.Helper{}
	checkNameConflict(t, s.sharedFiles(t.Context()), nil)
	register(t, filepath.Join(s.config.RegistryDir, "gpu.nvidia.com-reg.sock"), registrar{name: "gpu.nvidia.com"})
	checkNameConflict(t, s.sharedFiles(t.Context()), []string{"another driver named gpu.nvidia.com"})
	s.config.DriverName = "gpu.cleave.dev"
	checkNameConflict(t, s.sharedFiles(t.Context()), nil)
}

// A plugin that hangs is there, also where the time to look is over before anybody looks.
func TestIsListening_TimeIsOver(t *testing.T) {
	s, _ := compatibleService(t)
	socket := filepath.Join(s.config.RegistryDir, "gpu.nvidia.com-reg.sock")
	stop := register(t, socket, registrar{hang: true})
	defer stop()
	for _, left := range []time.Duration{-time.Second, 0, 10 * time.Microsecond, 50 * time.Microsecond, time.Minute} {
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			if !isListening(ctx, socket) {
				t.Errorf("with %s left, nobody listens", left)
			}
			cancel()
		}
	}
}
