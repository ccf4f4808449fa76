// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	loopback = "127.0.0.1"
	// serviceRange is where services get their addresses; serviceAddress is
	// the one of the API server and dnsAddress the customary one of the DNS.
	serviceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
	dnsAddress     = "10.96.0.10"

	// validity is long enough for a cluster that somebody forgets about.
	validity = 365 * 24 * time.Hour
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// pair is a certificate and its key, both encoded.
type pair struct{ cert, key []byte }

// subject says who a certificate is for. One with names or addresses serves,
// one without is a client.
type subject struct {
	name         string
	organization string
	dnsNames     []string
	addresses    []net.IP
}

func newAuthority(name string) (authority, error) {
	key, err := newKey()
	if err != nil {
		return authority{}, err
	}
	template, err := newTemplate(name)
	if err != nil {
		return authority{}, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return authority{}, fmt.Errorf("create the authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return authority{}, fmt.Errorf("parse the authority %s: %w", name, err)
	}
	return authority{cert, key, encodeCertificate(der)}, nil
}

// issue makes a certificate. Every one may be used by a client; those of
// servers also by a server (etcd is its own client).
func (a authority) issue(s subject) (pair, error) {
	key, err := newKey()
	if err != nil {
		return pair{}, err
	}
	template, err := newTemplate(s.name)
	if err != nil {
		return pair{}, err
	}
	if s.organization != "" {
		template.Subject.Organization = []string{s.organization}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.DNSNames, template.IPAddresses = s.dnsNames, s.addresses
	if len(s.dnsNames)+len(s.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("create the certificate of %s: %w", s.name, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("encode the key of %s: %w", s.name, err)
	}
	return pair{encodeCertificate(der), encoded}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate a key: %w", err)
	}
	return key, nil
}

func newTemplate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choose a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		// An hour back, for a clock that is set while the cluster runs.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(validity),
	}, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// writePKI makes every key and certificate of the cluster and the kubeconfigs
// that hold them. etcd has an authority of its own: nobody but the API server
// may talk to it.
func writePKI(l layout, s state) error {
	ca, err := newAuthority("cleave-cluster")
	if err != nil {
		return err
	}
	etcdCA, err := newAuthority("cleave-cluster-etcd")
	if err != nil {
		return err
	}
	local := []net.IP{net.ParseIP(loopback)}
	served := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	for _, c := range []struct {
		file    string
		signer  authority
		subject subject
	}{
		{"etcd", etcdCA, subject{name: "etcd", addresses: local}},
		{"etcd-client", etcdCA, subject{name: "kube-apiserver"}},
		{"apiserver", ca, subject{name: "kube-apiserver", dnsNames: served,
			addresses: append(slices.Clone(local), net.ParseIP(serviceAddress), net.ParseIP(PodGateway), net.ParseIP(s.apiServerHost()))}},
		{"apiserver-kubelet", ca, subject{name: "kube-apiserver", organization: "system:masters"}},
		{"local", ca, subject{name: "localhost", dnsNames: []string{"localhost"}, addresses: local}},
	} {
		issued, err := c.signer.issue(c.subject)
		if err != nil {
			return err
		}
		if err := writePair(l, c.file, issued); err != nil {
			return err
		}
	}
	if err := writeAuthorities(l, ca, etcdCA); err != nil {
		return err
	}
	for _, m := range s.machines() {
		if err := writeNodePKI(l.layoutOf(m), ca, m); err != nil {
			return err
		}
	}
	if err := writeServiceAccountKey(l); err != nil {
		return err
	}
	return writeKubeconfigs(l, s, ca)
}

// writeNodePKI gives a kubelet the certificate by which it serves, and that of the authority.
func writeNodePKI(l layout, ca authority, m machine) error {
	issued, err := ca.issue(subject{name: m.name, dnsNames: []string{m.name}, addresses: []net.IP{net.ParseIP(m.address)}})
	if err != nil {
		return err
	}
	if err := writePair(l, "kubelet", issued); err != nil {
		return err
	}
	return writeFile(l.pki("ca.crt"), ca.pem)
}

func writePair(l layout, name string, p pair) error {
	if err := writeFile(l.pki(name+".crt"), p.cert); err != nil {
		return err
	}
	return writeFile(l.pki(name+".key"), p.key)
}

// writeAuthorities keeps the key of the cluster's authority, with which the
// controller manager signs certificate requests.
func writeAuthorities(l layout, ca, etcdCA authority) error {
	key, err := encodeKey(ca.key)
	if err != nil {
		return fmt.Errorf("encode the key of the authority: %w", err)
	}
	if err := writePair(l, "ca", pair{ca.pem, key}); err != nil {
		return err
	}
	return writeFile(l.pki("etcd-ca.crt"), etcdCA.pem)
}

func writeServiceAccountKey(l layout) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	private, err := encodeKey(key)
	if err != nil {
		return fmt.Errorf("encode the service account key: %w", err)
	}
	if err := writeFile(l.pki("service-account.key"), private); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode the service account key: %w", err)
	}
	return writeFile(l.pki("service-account.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}
