// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/process"
)

// token is that of the administrator: everything is allowed to everybody who can authenticate.
const token = "admin"

// startTimeout bounds the start of a program on a busy machine.
const startTimeout = 3 * time.Minute

// bed is an API server of its own.
type bed struct {
	t          *testing.T
	dir        string
	kube       kubernetes.Interface
	kubeconfig string
	scheduler  *process.Program
}

// newBed starts etcd and an API server, which end with the test. There are the DeviceClasses of the manifests, and nodes.
func newBed(t *testing.T, nodes ...string) *bed {
	t.Helper()
	if os.Getenv("CLEAVE_E2E") != "1" {
		t.Skip("set CLEAVE_E2E=1: it needs the programs of Kubernetes and bin/cleave-scheduler (make test-all)")
	}
	b := &bed{t: t, dir: t.TempDir()}
	addresses := b.addresses(3)
	etcd := "http://" + addresses[0]
	b.start(bin("kubernetes", "tools", "etcd"), []string{
		"--data-dir=" + filepath.Join(b.dir, "etcd"), "--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
		"--listen-peer-urls=http://" + addresses[1], "--unsafe-no-fsync",
	}, etcd+"/health")
	server, key := addresses[2], b.key()
	b.write("tokens.csv", fmt.Sprintf("%s,admin,admin,system:masters\n", token))
	_, port, _ := strings.Cut(server, ":")
	b.start(bin("kubernetes", "v1.37.1", "kube-apiserver"), []string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + port,
		"--cert-dir=" + filepath.Join(b.dir, "certificates"), "--token-auth-file=" + filepath.Join(b.dir, "tokens.csv"),
		"--authorization-mode=AlwaysAllow", "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		// There are no controllers, which would make accounts and take taints off.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
	}, "https://"+server+"/readyz")
	b.kubeconfig = b.write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, server, token))
	var err error
	b.kube, err = kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + server, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 1000,
	})
	must(t, err)
	b.addClasses()
	b.addNodes(nodes...)
	return b
}

// must ends a test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bin is the path of a program below bin/.
func bin(parts ...string) string {
	path, _ := filepath.Abs(filepath.Join(append([]string{"..", "..", "bin"}, parts...)...))
	return path
}

// addresses are n free ones that differ.
func (b *bed) addresses(n int) (addresses []string) {
	b.t.Helper()
	ports, err := cluster.FreePorts(b.t.Context(), "127.0.0.1", n)
	must(b.t, err)
	for _, port := range ports {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addresses
}

func (b *bed) write(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	must(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// key is the file of a new key for the tokens of service accounts.
func (b *bed) key() string {
	b.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(b.t, err)
	return b.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
}

// start starts a program that ends with the test, and waits until an address answers.
func (b *bed) start(path string, args []string, ready string) *process.Program {
	b.t.Helper()
	p, err := process.Start(exec.Command(path, args...), filepath.Join(b.dir, filepath.Base(path)+".log"))
	must(b.t, err)
	b.t.Cleanup(func() { _ = p.End(syscall.SIGKILL) })
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(b.t.Context(), startTimeout)
	defer cancel()
	err = p.WaitReady(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, ready, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	must(b.t, err)
	return p
}

// startScheduler starts cleave-scheduler with arguments of the plugin, and waits until it has read the cluster.
func (b *bed) startScheduler(args string) {
	b.t.Helper()
	address := b.addresses(1)[0]
	_, port, _ := strings.Cut(address, ":")
	b.scheduler = b.start(bin("cleave-scheduler"), []string{
		"--config=" + b.config(args), "--bind-address=127.0.0.1", "--secure-port=" + port, "-v=4",
		"--cert-dir=" + filepath.Join(b.dir, "scheduler"),
	}, "https://"+address+"/readyz")
}

func (b *bed) config(args string) string {
	return b.write("scheduler.yaml", fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 1000}
profiles:
- schedulerName: cleave-scheduler
  plugins:
    multiPoint:
      enabled: [{name: GPUPacking, weight: 60}, {name: CandidateDynamicResources, weight: 2}]
      disabled: [{name: DynamicResources}]
    postFilter: {enabled: [{name: GPUPacking}, {name: CandidateDynamicResources}]}
    podGroupPostFilter: {enabled: [{name: CandidateDynamicResources}]}
    reserve: {enabled: [{name: CandidateDynamicResources}]}
  pluginConfig:
  - name: GPUPacking
    args: %s
`, b.kubeconfig, args))
}
