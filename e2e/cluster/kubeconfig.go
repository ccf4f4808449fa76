// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfigs writes one file for each identity that talks to the API
// server: the administrator's at the top of the directory, the others next to the
// certificates.
func writeKubeconfigs(l layout, s state, ca authority) error {
	for _, c := range []struct {
		path    string
		subject subject
	}{
		{l.kubeconfig(), subject{name: "cleave-admin", organization: "system:masters"}},
		{l.componentConfig(Scheduler), subject{name: "system:kube-scheduler"}},
		{l.componentConfig(ControllerManager), subject{name: "system:kube-controller-manager"}},
	} {
		if err := writeKubeconfig(c.path, s, ca, c.subject); err != nil {
			return err
		}
	}
	for _, m := range s.machines() {
		kubelet := subject{name: "system:node:" + m.name, organization: "system:nodes"}
		if err := writeKubeconfig(l.layoutOf(m).componentConfig(Kubelet), s, ca, kubelet); err != nil {
			return err
		}
	}
	return nil
}

func writeKubeconfig(path string, s state, ca authority, who subject) error {
	issued, err := ca.issue(who)
	if err != nil {
		return err
	}
	data, err := clientcmd.Write(kubeconfigFor(s, ca, who.name, issued))
	if err != nil {
		return fmt.Errorf("encode the kubeconfig of %s: %w", who.name, err)
	}
	return writeFile(path, data)
}

func kubeconfigFor(s state, ca authority, user string, p pair) clientcmdapi.Config {
	const name = "cleave"
	return clientcmdapi.Config{
		CurrentContext: name,
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   "https://" + s.apiServer(),
			CertificateAuthorityData: ca.pem,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{user: {
			ClientCertificateData: p.cert,
			ClientKeyData:         p.key,
		}},
		Contexts: map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: user}},
	}
}

func hostPort(port int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(port))
}
