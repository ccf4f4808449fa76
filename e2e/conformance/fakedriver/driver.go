// SPDX-License-Identifier: Apache-2.0

package fakedriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"k8s.io/client-go/kubernetes"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthpbv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is the driver. Start starts it.
type Driver struct {
	registerapi.UnsafeRegistrationServer
	drapb.UnsafeDRAPluginServer

	dir     string
	client  kubernetes.Interface
	faults  []Fault
	without []Feature

	servers []*grpc.Server
	serving sync.WaitGroup
	starts  int

	mu       sync.Mutex
	records  map[string]record // by claim UID
	released map[string]bool   // claims that were unprepared since the start
	damaged  []string
	changed  chan struct{} // closed when damaged changes
	calls    map[string]int
	busy     chan struct{} // has the call that runs
	rivals   chan struct{}
}

// record is a prepared claim, as it is on disk.
type record struct {
	Namespace, Name string
	Devices         []allocated
}

type allocated struct {
	Device string
	Share  string
	Admin  bool
}

// New makes a driver with its directories in dir. It can be wrong in some ways, and lack features.
func New(dir string, client kubernetes.Interface, faults []Fault, without []Feature) *Driver {
	return &Driver{dir: dir, client: client, faults: faults, without: without, changed: make(chan struct{}), calls: map[string]int{}}
}

// RegistryDir is where it registers.
func (d *Driver) RegistryDir() string { return filepath.Join(d.dir, "registry") }

// CDIDir has its specs.
func (d *Driver) CDIDir() string { return filepath.Join(d.dir, "cdi") }

// Socket is its endpoint.
func (d *Driver) Socket() string { return filepath.Join(d.dir, "dra.sock") }

func (d files) metadataDir() string   { return filepath.Join(d.dir, "metadata") }
func (d *Driver) recordsFile() string { return filepath.Join(d.dir, "records.json") }

func (d *Driver) is(f Fault) bool    { return slices.Contains(d.faults, f) }
func (d *Driver) has(f Feature) bool { return !slices.Contains(d.without, f) }

// Start publishes and serves.
func (d *Driver) Start(ctx context.Context) error {
	d.starts++
	if d.starts > 1 && d.is(StaysAway) {
		return nil
	}
	for _, dir := range []string{d.RegistryDir(), d.CDIDir(), files{d}.metadataDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create a directory of the driver: %w", err)
		}
	}
	if err := d.load(); err != nil {
		return err
	}
	if err := d.save(); err != nil {
		return err
	}
	if err := (publisher{d}).publish(ctx); err != nil {
		return err
	}
	plugin := grpc.NewServer()
	drapbv1beta1.RegisterDRAPluginServer(plugin, drapbv1beta1.V1ServerWrapper{DRAPluginServer: d})
	if d.has(V1) {
		drapb.RegisterDRAPluginServer(plugin, d)
	}
	if d.has(Health) {
		healthpb.RegisterDRAResourceHealthServer(plugin, &health{driver: d})
		if !d.is(HealthUnserved) {
			healthpbv1alpha1.RegisterDRAResourceHealthServer(plugin, &healthV1alpha1{health: health{driver: d}})
		}
	}
	registrar := grpc.NewServer()
	registerapi.RegisterRegistrationServer(registrar, d)
	return errors.Join(d.serve(ctx, plugin, d.Socket()), d.serve(ctx, registrar, filepath.Join(d.RegistryDir(), Name+"-reg.sock")))
}

func (d *Driver) serve(ctx context.Context, server *grpc.Server, socket string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", socket, err)
	}
	d.servers = append(d.servers, server)
	d.serving.Go(func() { _ = server.Serve(listener) }) // ends with Stop
	return nil
}

// Stop ends the process of the driver.
func (d *Driver) Stop() {
	for _, s := range d.servers {
		s.Stop()
	}
	d.serving.Wait()
	d.servers = nil
}

// Restart stops and starts the driver.
func (d *Driver) Restart(ctx context.Context) error {
	d.Stop()
	if d.is(LosesSpecs) {
		if err := os.RemoveAll(d.CDIDir()); err != nil {
			return err
		}
	}
	return d.Start(ctx)
}

// Damage makes a device unhealthy.
func (d *Driver) Damage(ctx context.Context, _, device string) error {
	return d.change(ctx, func() { d.damaged = append(d.damaged, device) })
}

// Repair undoes it.
func (d *Driver) Repair(ctx context.Context, _, device string) error {
	return d.change(ctx, func() {
		if !d.is(TaintStays) && !d.is(HealthNeverBack) {
			d.damaged = slices.DeleteFunc(d.damaged, func(name string) bool { return name == device })
		}
	})
}

func (d *Driver) change(ctx context.Context, do func()) error {
	d.mu.Lock()
	do()
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	return publisher{d}.publish(ctx)
}

func (d *Driver) unhealthy(device string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.damaged, device)
}

// inUse reports whether a claim has a device.
func (d *Driver) inUse(device string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.records {
		if slices.ContainsFunc(r.Devices, func(a allocated) bool { return a.Device == device }) {
			return true
		}
	}
	return false
}

// Prepared is how many claims are prepared.
func (d *Driver) Prepared() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.records)
}

// load reads the records of before.
func (d *Driver) load() error {
	d.records, d.released = map[string]record{}, map[string]bool{}
	d.busy, d.rivals = make(chan struct{}, 1), make(chan struct{})
	if d.is(Forgets) {
		return nil
	}
	data, err := os.ReadFile(d.recordsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the records: %w", err)
	}
	if err := json.Unmarshal(data, &d.records); err != nil {
		return fmt.Errorf("decode the records: %w", err)
	}
	return nil
}

// save writes the records. The caller has the lock, or is the only one.
func (d *Driver) save() error {
	data, err := json.Marshal(d.records)
	if err != nil {
		return fmt.Errorf("encode the records: %w", err)
	}
	if err := os.WriteFile(d.recordsFile(), data, 0o600); err != nil {
		return fmt.Errorf("write the records: %w", err)
	}
	return nil
}

func (d *Driver) count(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls[name]++
	return d.calls[name]
}

func (d *Driver) counted(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[name]
}
