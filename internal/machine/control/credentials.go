// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Files of one end's credentials, as in Secrets of Kubernetes.
const (
	CAFile   = "ca.crt"
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

const (
	// validFor is longer than a machine runs: its certificates are not renewed.
	validFor = 20 * 365 * 24 * time.Hour
	// clockSkew is how far the clocks of two hosts may be apart.
	clockSkew = 24 * time.Hour
)

// Credentials are those of one end, as PEM: its certificate and key, and the authority of the
// other end's certificate.
type Credentials struct{ CA, Cert, Key []byte }

// SeedBytes is how long the seed of credentials has to be.
const SeedBytes = 32

// MachineCredentials returns those of a machine's listener. name identifies the machine, such as by the
// UID of its object, and stands in the certificate.
//
// The authority of both ends depends on the seed, the name and the run of the machine alone. So who has
// the seed makes a client of a machine again at any time, and keeps nothing of it; each end works with the
// other end of any call with the same arguments.
func MachineCredentials(seed []byte, name, run string, now time.Time) (Credentials, error) {
	return issueCredentials(seed, name, run, now, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// ClientCredentials returns those of the machine's client.
func ClientCredentials(seed []byte, name, run string, now time.Time) (Credentials, error) {
	return issueCredentials(seed, name, run, now, &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "client of " + name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issueCredentials derives the authority of a machine, and signs the certificate of one end with it.
func issueCredentials(seed []byte, name, run string, now time.Time, end *x509.Certificate) (Credentials, error) {
	if len(seed) != SeedBytes {
		return Credentials{}, fmt.Errorf("the seed has %d bytes: it must have %d", len(seed), SeedBytes)
	}
	secret, err := hkdf.Key(sha256.New, seed, nil, fmt.Sprintf("drover-machine control %q %q", name, run), ed25519.SeedSize)
	if err != nil {
		return Credentials{}, err
	}
	key := ed25519.NewKeyFromSeed(secret)
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drover-machine " + name},
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca, err := sign(authority, authority, key.Public(), key, now)
	if err != nil {
		return Credentials{}, err
	}
	c, err := newEnd(end, authority, key, now)
	c.CA = ca
	return c, err
}

// newEnd makes the certificate of one end, and its key.
func newEnd(template, authority *x509.Certificate, authorityKey crypto.Signer, now time.Time) (Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, err
	}
	cert, err := sign(template, authority, &key.PublicKey, authorityKey, now)
	if err != nil {
		return Credentials{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{Cert: cert, Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer, now time.Time) ([]byte, error) {
	template.NotBefore, template.NotAfter = now.Add(-clockSkew), now.Add(validFor)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// ReadCredentials reads credentials from a folder.
func ReadCredentials(folder string) (c Credentials, err error) {
	for name, to := range map[string]*[]byte{CAFile: &c.CA, CertFile: &c.Cert, KeyFile: &c.Key} {
		if *to, err = os.ReadFile(filepath.Join(folder, name)); err != nil { //nolint:gosec // the caller's
			return Credentials{}, err
		}
	}
	return c, nil
}

// ClientConfig returns the TLS configuration of a client of the machine that has the name.
func (c Credentials) ClientConfig(name string) (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ServerName, config.RootCAs = name, pool
	return config, nil
}

// serverConfig returns the TLS configuration of a machine's listener. Every connection shows
// its certificate anew.
func (c Credentials) serverConfig() (*tls.Config, error) {
	config, pool, err := c.config()
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs, config.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, pool, true
	return config, nil
}

func (c Credentials) config() (*tls.Config, *x509.CertPool, error) {
	cert, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s: %w", CertFile, KeyFile, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.CA) {
		return nil, nil, errors.New(CAFile + " has no certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, pool, nil
}
