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
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Files with the credentials of one end, named as in Kubernetes Secrets.
const (
	CAFile   = "ca.crt"
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
	// GuestCAFile has the authority of clients that may reach the guest. Without it, no client may.
	GuestCAFile = "guest-ca.crt"
)

const (
	// validFor must be longer than any machine runs, since certificates are not renewed.
	validFor = 20 * 365 * 24 * time.Hour
	// guestValidFor is how long a client may open streams with one certificate.
	guestValidFor = 10 * time.Minute
	// clockSkew is the largest difference between the clocks of two hosts that is tolerated.
	clockSkew = 24 * time.Hour
)

// Credentials are the certificate and key of one end, and the authority of the other end, as PEM.
type Credentials struct {
	CA, Cert, Key []byte
	// GuestCA is the authority of clients that may reach the guest. Only a machine has one; if it is nil, no
	// client may reach the guest.
	GuestCA []byte
}

// SeedBytes is the length of a seed.
const SeedBytes = 32

// MachineCredentials returns the credentials of a machine's listener. name identifies the machine, for
// example by the UID of its object, and is in the certificate. With a guestSeed, clients may also reach the
// guest.
//
// Both authorities are derived from the seeds, the name and the run of the machine. So a controller with the
// seed can make a client for a machine at any time, and need not store credentials. Credentials from separate
// calls with the same arguments fit together.
func MachineCredentials(seed, guestSeed []byte, name, run string, now time.Time) (Credentials, error) {
	own, err := newAuthority(seed, controlPurpose, name, run, now)
	if err != nil {
		return Credentials{}, err
	}
	c, err := own.issueCertificate(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, validFor)
	if err != nil || guestSeed == nil {
		return c, err
	}
	guest, err := newAuthority(guestSeed, guestPurpose, name, run, now)
	c.GuestCA = guest.pem
	return c, err
}

// ClientCredentials returns the credentials of a client that controls the machine.
func ClientCredentials(seed []byte, name, run string, now time.Time) (Credentials, error) {
	own, err := newAuthority(seed, controlPurpose, name, run, now)
	if err != nil {
		return Credentials{}, err
	}
	return own.issueClient(name, validFor)
}

// GuestCredentials returns the credentials of a client that may reach only the guest. They are valid for
// guestValidFor.
func GuestCredentials(seed, guestSeed []byte, name, run string, now time.Time) (Credentials, error) {
	own, err := newAuthority(seed, controlPurpose, name, run, now)
	if err != nil {
		return Credentials{}, err
	}
	guest, err := newAuthority(guestSeed, guestPurpose, name, run, now)
	if err != nil {
		return Credentials{}, err
	}
	c, err := guest.issueClient(name, guestValidFor)
	c.CA = own.pem
	return c, err
}

// Purposes of authorities. A purpose is a part of the authority's name.
const controlPurpose, guestPurpose = "control", "guest"

// authority signs certificates of one purpose for one run of a machine.
type authority struct {
	certificate *x509.Certificate
	key         ed25519.PrivateKey
	pem         []byte
	now         time.Time
}

// newAuthority derives an authority from a seed.
func newAuthority(seed []byte, purpose, name, run string, now time.Time) (authority, error) {
	if len(seed) != SeedBytes {
		return authority{}, fmt.Errorf("the seed for certificates has %d bytes, and must have %d", len(seed), SeedBytes)
	}
	secret, err := hkdf.Key(sha256.New, seed, nil, fmt.Sprintf("drover-machine %s %q %q", purpose, name, run), ed25519.SeedSize)
	if err != nil {
		return authority{}, err
	}
	a := authority{key: ed25519.NewKeyFromSeed(secret), now: now, certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "drover-machine " + purpose + " " + name},
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.pem, err = a.signCertificate(a.certificate, a.key.Public(), validFor)
	return a, err
}

// issueClient returns the credentials of a client.
func (a authority) issueClient(name string, valid time.Duration) (Credentials, error) {
	return a.issueCertificate(&x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "client of " + name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, valid)
}

// issueCertificate returns credentials with a new key.
func (a authority) issueCertificate(template *x509.Certificate, valid time.Duration) (Credentials, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Credentials{}, err
	}
	cert, err := a.signCertificate(template, &key.PublicKey, valid)
	if err != nil {
		return Credentials{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{CA: a.pem, Cert: cert, Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}, nil
}

// signCertificate returns a signed certificate as PEM.
func (a authority) signCertificate(template *x509.Certificate, public crypto.PublicKey, valid time.Duration) ([]byte, error) {
	template.NotBefore, template.NotAfter = a.now.Add(-clockSkew), a.now.Add(valid)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// ReadCredentials reads credentials from a folder.
func ReadCredentials(folder string) (c Credentials, err error) {
	for name, field := range map[string]*[]byte{CAFile: &c.CA, CertFile: &c.Cert, KeyFile: &c.Key} {
		if *field, err = os.ReadFile(filepath.Join(folder, name)); err != nil { //nolint:gosec // a folder of the caller
			return Credentials{}, err
		}
	}
	c.GuestCA, err = os.ReadFile(filepath.Join(folder, GuestCAFile)) //nolint:gosec // a folder of the caller
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return c, err
}

// ClientConfig returns the TLS configuration of a client of the named machine.
func (c Credentials) ClientConfig(name string) (*tls.Config, error) {
	config, pool, err := c.newConfig()
	if err != nil {
		return nil, err
	}
	config.ServerName, config.RootCAs = name, pool
	return config, nil
}

// serverConfig returns the TLS configuration of a machine's listener, and the authority of clients that
// may reach its guest, which is nil without one. It disables the resumption of TLS sessions, so that every
// connection presents its certificate.
func (c Credentials) serverConfig() (config *tls.Config, guestCA *x509.Certificate, err error) {
	config, pool, err := c.newConfig()
	if err != nil {
		return nil, nil, err
	}
	if c.GuestCA != nil {
		block, _ := pem.Decode(c.GuestCA)
		if block == nil {
			return nil, nil, errors.New(GuestCAFile + " does not contain a certificate")
		}
		if guestCA, err = x509.ParseCertificate(block.Bytes); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", GuestCAFile, err)
		}
		pool.AddCert(guestCA)
	}
	config.ClientAuth, config.ClientCAs, config.SessionTicketsDisabled = tls.RequireAndVerifyClientCert, pool, true
	return config, guestCA, nil
}

// newConfig returns the common settings of both ends, and a pool with the authority of the other end.
func (c Credentials) newConfig() (*tls.Config, *x509.CertPool, error) {
	cert, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s: %w", CertFile, KeyFile, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.CA) {
		return nil, nil, errors.New(CAFile + " does not contain a certificate")
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, pool, nil
}
