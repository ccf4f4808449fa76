// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Component is one of the processes of a cluster.
type Component string

// The components of a cluster.
const (
	Etcd              Component = "etcd"
	Containerd        Component = "containerd"
	APIServer         Component = "kube-apiserver"
	Scheduler         Component = "kube-scheduler"
	ControllerManager Component = "kube-controller-manager"
	Kubelet           Component = "kubelet"
)

// Components lists them in the order in which they start.
func Components() []Component {
	return []Component{Etcd, Containerd, APIServer, Scheduler, ControllerManager, Kubelet}
}

// onNode reports whether every node has the component.
func (c Component) onNode() bool { return c == nodeInit || slices.Contains(nodeComponents, c) }

// command returns the program of a component and its arguments. What a node has of its own is of no matter to the others.
func command(l layout, s state, m machine, c Component) (path string, args []string, err error) {
	switch c {
	case Etcd:
		return filepath.Join(s.toolsDir(), string(c)), etcdArgs(l, s), nil
	case Containerd:
		return filepath.Join(s.toolsDir(), string(c)), []string{"--config", l.containerdConfig()}, nil
	case APIServer:
		args = apiServerArgs(l, s)
	case Scheduler:
		args = schedulerArgs(l, s)
	case ControllerManager:
		args = controllerManagerArgs(l, s)
	case Kubelet:
		args = kubeletArgs(l, m)
	default:
		return "", nil, fmt.Errorf("find the program of %q: no such component; there are %s", c, joinComponents())
	}
	return filepath.Join(s.kubernetesDir(), string(c)), args, nil
}

func joinComponents() string {
	var names []string
	for _, c := range Components() {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

func etcdArgs(l layout, s state) []string {
	client, peer := "https://"+hostPort(s.Ports.EtcdClient), "http://"+hostPort(s.Ports.EtcdPeer)
	return []string{
		"--name=cleave",
		"--data-dir=" + l.path("etcd", "data"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=cleave=" + peer,
		"--cert-file=" + l.pki("etcd.crt"),
		"--key-file=" + l.pki("etcd.key"),
		"--trusted-ca-file=" + l.pki("etcd-ca.crt"),
		"--client-cert-auth",
		// The cluster does not outlive the machine, so its data need not.
		"--unsafe-no-fsync",
	}
}

func apiServerArgs(l layout, s state) []string {
	args := []string{
		"--bind-address=" + s.apiServerHost(),
		"--advertise-address=" + s.apiServerHost(),
		"--secure-port=" + strconv.Itoa(s.Ports.APIServer),
		"--etcd-servers=https://" + hostPort(s.Ports.EtcdClient),
		"--etcd-cafile=" + l.pki("etcd-ca.crt"),
		"--etcd-certfile=" + l.pki("etcd-client.crt"),
		"--etcd-keyfile=" + l.pki("etcd-client.key"),
		"--tls-cert-file=" + l.pki("apiserver.crt"),
		"--tls-private-key-file=" + l.pki("apiserver.key"),
		"--client-ca-file=" + l.pki("ca.crt"),
		"--kubelet-client-certificate=" + l.pki("apiserver-kubelet.crt"),
		"--kubelet-client-key=" + l.pki("apiserver-kubelet.key"),
		"--kubelet-certificate-authority=" + l.pki("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + serviceRange,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + l.pki("service-account.pub"),
		"--service-account-signing-key-file=" + l.pki("service-account.key"),
		// Endpoints on a loopback address are invalid, and nothing here
		// forwards the service address.
		"--endpoint-reconciler-type=none",
		// Who measures a control plane asks what its memory holds.
		"--profiling=" + strconv.FormatBool(s.ControlPlane),
	}
	if s.ControlPlane {
		// There are no controllers, which would create ServiceAccounts and remove taints.
		args = append(args, "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition")
	}
	if len(s.Runtime) > 0 {
		args = append(args, "--runtime-config="+strings.Join(s.Runtime, ","))
	}
	return append(args, gateArgs(s)...)
}

func schedulerArgs(l layout, s state) []string {
	return append(localArgs(l, Scheduler, s.Ports.Scheduler), gateArgs(s)...)
}

func controllerManagerArgs(l layout, s state) []string {
	args := append(localArgs(l, ControllerManager, s.Ports.ControllerManager),
		"--use-service-account-credentials=true",
		// It makes an account for each of its controllers before any of them
		// works, which takes five seconds at the default rate.
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--service-account-private-key-file="+l.pki("service-account.key"),
		"--root-ca-file="+l.pki("ca.crt"),
		"--cluster-signing-cert-file="+l.pki("ca.crt"),
		"--cluster-signing-key-file="+l.pki("ca.key"),
		// The default is a directory outside of ours, which would be made.
		"--flex-volume-plugin-dir="+l.path("kubelet", "volume-plugins"),
	)
	if s.several() {
		// That a node is lost is noticed after 20 seconds in place of 50.
		args = append(args, "--node-monitor-grace-period=20s")
	}
	return append(args, gateArgs(s)...)
}

// localArgs are common to the scheduler and the controller manager.
func localArgs(l layout, c Component, port int) []string {
	config := l.componentConfig(c)
	return []string{
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		// No proxy stands in front of the API server, so there is nothing
		// about one to look up.
		"--authentication-skip-lookup=true",
		"--client-ca-file=" + l.pki("ca.crt"),
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + l.pki("local.crt"),
		"--tls-private-key-file=" + l.pki("local.key"),
		// There is one of each, and it must not wait for a lease of a
		// predecessor that was killed.
		"--leader-elect=false",
		"--profiling=false",
	}
}

func kubeletArgs(l layout, m machine) []string {
	return []string{
		"--config=" + l.kubeletConfig(),
		"--kubeconfig=" + l.componentConfig(Kubelet),
		"--root-dir=" + l.kubeletDir(),
		"--cert-dir=" + l.path("kubelet", "pki"),
		"--hostname-override=" + m.name,
		// The address of the node is what Up writes. The loopback address a
		// kubelet would refuse to find out by itself.
		"--cloud-provider=external",
	}
}

func gateArgs(s state) []string {
	if len(s.FeatureGates) == 0 {
		return nil
	}
	var gates []string
	for _, name := range slices.Sorted(maps.Keys(s.FeatureGates)) {
		gates = append(gates, fmt.Sprintf("%s=%t", name, s.FeatureGates[name]))
	}
	return []string{"--feature-gates=" + strings.Join(gates, ",")}
}
