// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// keyPair writes a self-signed certificate of a name.
func keyPair(t *testing.T, dir, name string, modified time.Time) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// servedBy is the name in the certificate that an address shows.
func servedBy(t *testing.T, address net.Addr) string {
	t.Helper()
	conn, err := tls.Dial("tcp", address.String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestServe_CertificateRenewed(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	server := Server{Rules: DefaultRules(), Address: "127.0.0.1:0"}
	server.CertFile, server.KeyFile = keyPair(t, dir, "first", now.Add(-time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	started, done := make(chan net.Addr, 1), make(chan error, 1)
	go func() { done <- server.Run(ctx, func(a net.Addr) { started <- a }) }()
	address := <-started
	if got := servedBy(t, address); got != "first" {
		t.Errorf("got the certificate of %q", got)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Get("https://" + address.String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %s of /healthz", resp.Status)
	}
	client.CloseIdleConnections()
	keyPair(t, dir, "second", now)
	if got := servedBy(t, address); got != "second" {
		t.Errorf("got the certificate of %q after it changed", got)
	}
	// Between two writes the files do not fit together.
	if err := os.WriteFile(server.KeyFile, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := servedBy(t, address); got != "second" {
		t.Errorf("got the certificate of %q while the next is being written", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v at the end", err)
	}
}

func TestServe_NoCertificate(t *testing.T) {
	dir := t.TempDir()
	for name, server := range map[string]Server{
		"no file":      {Address: "127.0.0.1:0", CertFile: filepath.Join(dir, "none.crt"), KeyFile: filepath.Join(dir, "none.key")},
		"no directory": {Address: "127.0.0.1:0", CertFile: "/nowhere/tls.crt", KeyFile: "/nowhere/tls.key"},
	} {
		if err := server.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "read the webhook's certificate") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	server := Server{Address: "127.0.0.1:none"}
	server.CertFile, server.KeyFile = keyPair(t, dir, "x", time.Now())
	if err := server.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "--address") {
		t.Errorf("got %v of an address that is none", err)
	}
}
