// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// mirror is one registration of a plugin with the kubelet.
type mirror struct {
	registerapi.UnimplementedRegistrationServer
	tap  *Tap
	name string
	of   identity

	server *grpc.Server
	plugin *grpc.ClientConn
	done   sync.WaitGroup

	mu          sync.Mutex
	endpoint    string // of the plugin, where this program finds it
	listener    net.Listener
	connections map[net.Conn]bool
	closed      bool
}

// open registers with the kubelet.
func (m *mirror) open(ctx context.Context) error {
	path := m.tap.kubeletSocket(m.name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	plugin, err := grpc.NewClient("unix:"+m.tap.pluginSocket(m.name), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return errors.Join(err, plugin.Close())
	}
	m.plugin, m.connections = plugin, map[net.Conn]bool{}
	m.server = grpc.NewServer()
	registerapi.RegisterRegistrationServer(m.server, m)
	m.done.Go(func() { _ = m.server.Serve(listener) }) // it ends with the server
	return nil
}

// close takes the registration away and ends its connections.
func (m *mirror) close() {
	m.server.Stop() // removes the socket
	_ = m.plugin.Close()
	m.mu.Lock()
	m.closed = true
	m.hangUp()
	for c := range m.connections {
		_ = c.Close()
	}
	m.mu.Unlock()
	m.done.Wait()
}

// hangUp ends the listener; the caller holds mu.
func (m *mirror) hangUp() {
	if m.listener != nil {
		_ = m.listener.Close() // removes the socket
		m.listener = nil
	}
}

// GetInfo is the plugin's answer, with the tap's endpoint in place of its own.
func (m *mirror) GetInfo(ctx context.Context, r *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	var header metadata.MD
	info, err := registerapi.NewRegistrationClient(m.plugin).GetInfo(ctx, r, grpc.Header(&header))
	if err != nil {
		return nil, err
	}
	header.Delete("content-type")
	if err := grpc.SetHeader(ctx, header); err != nil {
		return nil, err
	}
	if info.Endpoint == "" || info.GetType() != registerapi.DRAPlugin {
		return info, nil // it serves where it registers: that is no DRA plugin of today
	}
	endpoint, err := m.listen(context.WithoutCancel(ctx), info.Endpoint)
	info.Endpoint = endpoint
	return info, err
}

// NotifyRegistrationStatus is the plugin's answer.
func (m *mirror) NotifyRegistrationStatus(
	ctx context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	return registerapi.NewRegistrationClient(m.plugin).NotifyRegistrationStatus(ctx, s)
}

// listen accepts connections for an endpoint of the plugin.
func (m *mirror) listen(ctx context.Context, endpoint string) (string, error) {
	sum := sha256.Sum256([]byte(m.name))
	path := filepath.Join(m.tap.opts.Dir, hex.EncodeToString(sum[:4])+".sock")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endpoint = m.tap.opts.HostPath(endpoint)
	if m.listener != nil || m.closed {
		return path, nil
	}
	here := m.tap.opts.HostPath(path)
	if err := os.Remove(here); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", here)
	if err != nil {
		return "", fmt.Errorf("listen in place of %s: %w", endpoint, err)
	}
	m.listener = listener
	m.done.Go(func() { m.accept(ctx, listener) })
	return path, nil
}

func (m *mirror) accept(ctx context.Context, listener net.Listener) {
	for {
		kubelet, err := listener.Accept()
		if err != nil {
			return
		}
		m.done.Go(func() { m.serve(ctx, kubelet) })
	}
}

// keep notes a connection that close ends; false if it is too late.
func (m *mirror) keep(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.connections[c] = true
	}
	return !m.closed
}

func (m *mirror) drop(c net.Conn) {
	_ = c.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.connections, c)
}

// serve connects one connection of the kubelet. Where the plugin does not answer any more, neither does the tap until it
// registers again: the kubelet has to see that nobody is there.
func (m *mirror) serve(ctx context.Context, kubelet net.Conn) {
	defer m.drop(kubelet)
	m.mu.Lock()
	endpoint := m.endpoint
	m.mu.Unlock()
	plugin, err := (&net.Dialer{}).DialContext(ctx, "unix", endpoint)
	if err != nil {
		m.mu.Lock()
		m.hangUp()
		m.mu.Unlock()
		return
	}
	defer m.drop(plugin)
	if !m.keep(kubelet) || !m.keep(plugin) {
		return
	}
	c := &conversation{name: fmt.Sprintf("connection-%d", m.tap.connections.Add(1)), record: m.tap.record}
	asked, answered := c.watch()
	var both sync.WaitGroup
	both.Go(func() { m.tap.fail(pass(plugin, kubelet, asked)) })
	both.Go(func() { m.tap.fail(pass(kubelet, plugin, answered)) })
	both.Wait()
	if probe, err := (&net.Dialer{}).DialContext(ctx, "unix", endpoint); err != nil {
		m.mu.Lock()
		m.hangUp()
		m.mu.Unlock()
	} else {
		_ = probe.Close()
	}
}

// pass copies what one says to the other, read along before the other has it, until either ends the connection. What cannot
// be read is passed on all the same, and is the error.
func pass(to, from net.Conn, along *direction) (unread error) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && unread == nil {
			unread = along.feed(buffer[:n])
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return unread
		}
	}
}
