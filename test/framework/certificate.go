// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"cloudnative.tw/drover/test/assert"
)

// SignUser returns a connection as the named user, with a client certificate that the CA of
// `drover up` signs and that expires at until.
func (c *Cluster) SignUser(t testing.TB, name string, until time.Time) *rest.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.DataDir, "pki", "ca.pem"))
	assert.NoError(t, err)
	ca, err := certutil.ParseCertsPEM(text)
	assert.NoError(t, err)
	caKey, err := keyutil.ParsePrivateKeyPEM(text)
	assert.NoError(t, err)
	user := rest.AnonymousClientConfig(c.Config)
	user.CertData, user.KeyData = SignCertificate(t, name, until, ca[0], caKey)
	return user
}

// WriteServerCertificate writes tls.crt, tls.key and ca.crt of a server on 127.0.0.1 into a
// folder, and returns the CA.
func WriteServerCertificate(dir string) (ca []byte, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return certificate, nil
}

// SignCertificate returns a client certificate and its key, in PEM. Without a CA the
// certificate is self-signed.
func SignCertificate(t testing.TB, name string, until time.Time, ca *x509.Certificate, caKey any) (certificate, key []byte) {
	t.Helper()
	newKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: earlierOf(until, time.Now()).Add(-2 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if ca == nil {
		ca, caKey = template, newKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, newKey.Public(), caKey)
	assert.NoError(t, err)
	certificateToEncode, err := x509.ParseCertificate(der)
	assert.NoError(t, err)
	certificate, err = certutil.EncodeCertificates(certificateToEncode)
	assert.NoError(t, err)
	key, err = keyutil.MarshalPrivateKeyToPEM(newKey)
	assert.NoError(t, err)
	return certificate, key
}

func earlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// TrustTestServers makes this process trust only the certificate that all servers of httptest have. It has
// to be called before the process first uses TLS, thus in TestMain.
func TrustTestServers() (remove func(), err error) {
	server := httptest.NewTLSServer(nil)
	server.Close()
	trusted, err := os.CreateTemp("", "drover-test-*.pem")
	if err != nil {
		return nil, err
	}
	err = errors.Join(pem.Encode(trusted, &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), trusted.Close(),
		os.Setenv("SSL_CERT_FILE", trusted.Name()))
	return func() { _ = os.Remove(trusted.Name()) }, err
}
