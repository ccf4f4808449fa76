// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readyTimeout bounds how long a component may take to become ready. It takes
// seconds on an idle machine.
const readyTimeout = 2 * time.Minute

// poll looks at a condition until it holds. When the context ends first, the
// error says what the last look saw.
func poll(ctx context.Context, interval time.Duration, look func(context.Context) error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		if ctx.Err() == nil || last == nil {
			last = err // a look that the end of the context broke off says nothing
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-ticker.C:
		}
	}
}

// finalError ends a poll: looking again will not help.
type finalError struct{ error }

// wait waits until the component is ready, or has ended, or takes too long.
func (c Control) wait(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := healthClient(c.cluster.layout)
	if err != nil {
		return err
	}
	err = poll(ctx, pollInterval, func(ctx context.Context) error {
		if !d.process.alive() {
			return finalError{errors.New("it ended")}
		}
		return c.health(ctx, client)
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}

// health asks the component whether it is ready.
func (c Control) health(ctx context.Context, client *http.Client) error {
	ports := c.cluster.state.Ports
	switch c.component {
	case Etcd:
		return get(ctx, client, "https://"+hostPort(ports.EtcdClient)+"/readyz")
	case APIServer:
		return get(ctx, client, "https://"+c.cluster.state.apiServer()+"/readyz")
	case Scheduler:
		return get(ctx, client, "https://"+hostPort(ports.Scheduler)+"/healthz")
	case ControllerManager:
		return get(ctx, client, "https://"+hostPort(ports.ControllerManager)+"/healthz")
	case Kubelet:
		return get(ctx, client, "http://"+net.JoinHostPort(c.node.machine.address, strconv.Itoa(ports.KubeletHealth))+"/healthz")
	case Containerd:
		// Serving the runtime service is the last thing it begins.
		return c.node.ctr(ctx, "version")
	default:
		return finalError{fmt.Errorf("no such component; there are %s", joinComponents())}
	}
}

// healthClient trusts both authorities of the cluster and can show itself to
// etcd, which talks to nobody else.
func healthClient(l layout) (*http.Client, error) {
	roots := x509.NewCertPool()
	for _, name := range []string{"ca.crt", "etcd-ca.crt"} {
		data, err := os.ReadFile(l.pki(name))
		if err != nil {
			return nil, fmt.Errorf("read the authority of the cluster: %w", err)
		}
		roots.AppendCertsFromPEM(data)
	}
	cert, err := tls.LoadX509KeyPair(l.pki("etcd-client.crt"), l.pki("etcd-client.key"))
	if err != nil {
		return nil, fmt.Errorf("read the certificate for etcd: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}, nil
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return finalError{err}
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<14))
	err = errors.Join(err, response.Body.Close())
	if response.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s answers %s: %s", url, strconv.Quote(response.Status), lastLines(body, 3)), err)
	}
	return err
}

// waitNode waits until the node is Ready by the word of a kubelet that was
// alive after a moment: the conditions of its predecessor stay until then.
func (c Control) waitNode(ctx context.Context, d *daemon, after time.Time) error {
	client, err := c.cluster.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err = poll(ctx, 2*pollInterval, func(ctx context.Context) error {
		if !d.process.alive() {
			return finalError{errors.New("it ended")}
		}
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, c.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(after) {
			return errors.New("the kubelet has not renewed the lease of its node yet")
		}
		node, err := client.CoreV1().Nodes().Get(ctx, c.node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return readyNode(node)
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}

func readyNode(node *corev1.Node) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("node %s is not ready: %s: %s", node.Name, condition.Reason, condition.Message)
		}
	}
	return fmt.Errorf("node %s says nothing about being ready", node.Name)
}
