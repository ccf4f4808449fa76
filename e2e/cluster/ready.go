// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
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

// wait waits until a component is ready, or has ended, or takes too long.
func (c *Cluster) wait(ctx context.Context, d *daemon) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := c.healthClient()
	if err != nil {
		return err
	}
	err = poll(ctx, pollInterval, func(ctx context.Context) error {
		if !d.process.alive() {
			return finalError{errors.New("it ended")}
		}
		return c.health(ctx, client, d.component)
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}

// health asks a component whether it is ready.
func (c *Cluster) health(ctx context.Context, client *http.Client, component Component) error {
	ports := c.state.Ports
	switch component {
	case Etcd:
		return get(ctx, client, "https://"+hostPort(ports.EtcdClient)+"/readyz")
	case APIServer:
		return get(ctx, client, "https://"+hostPort(ports.APIServer)+"/readyz")
	case Scheduler:
		return get(ctx, client, "https://"+hostPort(ports.Scheduler)+"/healthz")
	case ControllerManager:
		return get(ctx, client, "https://"+hostPort(ports.ControllerManager)+"/healthz")
	case Kubelet:
		return get(ctx, client, "http://"+hostPort(ports.KubeletHealth)+"/healthz")
	case Containerd:
		// Serving the runtime service is the last thing it begins.
		return c.ctr(ctx, "version")
	default:
		return finalError{fmt.Errorf("no such component; there are %s", joinComponents())}
	}
}

// healthClient trusts both authorities of the cluster and can show itself to
// etcd, which talks to nobody else.
func (c *Cluster) healthClient() (*http.Client, error) {
	roots := x509.NewCertPool()
	for _, name := range []string{"ca.crt", "etcd-ca.crt"} {
		data, err := os.ReadFile(c.layout.pki(name))
		if err != nil {
			return nil, fmt.Errorf("read the authority of the cluster: %w", err)
		}
		roots.AppendCertsFromPEM(data)
	}
	cert, err := tls.LoadX509KeyPair(c.layout.pki("etcd-client.crt"), c.layout.pki("etcd-client.key"))
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
func (c *Cluster) waitNode(ctx context.Context, after time.Time) error {
	d, err := findDaemon(c.layout, Kubelet)
	if err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err = poll(ctx, 2*pollInterval, func(ctx context.Context) error {
		if !d.process.alive() {
			return finalError{errors.New("it ended")}
		}
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, c.state.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(after) {
			return errors.New("the kubelet has not renewed the lease of its node yet")
		}
		node, err := client.CoreV1().Nodes().Get(ctx, c.state.NodeName, metav1.GetOptions{})
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

// waitServiceAccount waits for the default service account: no pod can be made
// before it is there.
func (c *Cluster) waitServiceAccount(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	d, err := findDaemon(c.layout, ControllerManager)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err = poll(ctx, 2*pollInterval, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return d.failure(err)
	}
	return nil
}
