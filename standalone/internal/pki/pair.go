// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func (p *pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
}

// leaf is a required certificate: of a server if it has hosts, else of a client.
type leaf struct {
	file   string
	name   string
	groups []string
	hosts  []string
}

func (l *leaf) extKeyUsage() x509.ExtKeyUsage {
	if len(l.hosts) > 0 {
		return x509.ExtKeyUsageServerAuth
	}
	return x509.ExtKeyUsageClientAuth
}

// isIssuedAs reports whether have can stay the required leaf, apart from its hosts.
func (l *leaf) isIssuedAs(have, ca *pair, now time.Time) bool {
	c := have.cert
	return c.CheckSignatureFrom(ca.cert) == nil &&
		!now.Before(c.NotBefore) && c.NotAfter.Sub(now) >= leafRenew &&
		c.Subject.CommonName == l.name && slices.Equal(c.Subject.Organization, l.groups) &&
		slices.Contains(c.ExtKeyUsage, l.extKeyUsage())
}

// coversHosts reports whether the certificate is valid for every required host.
func (l *leaf) coversHosts(c *x509.Certificate) bool {
	return !slices.ContainsFunc(l.hosts, func(host string) bool {
		return c.VerifyHostname(host) != nil
	})
}

// hostsOf returns the names and addresses that a certificate is valid for.
func hostsOf(c *x509.Certificate) []string {
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// maxHosts bounds the hosts of a certificate, since a host may get new addresses without end. The
// certificate stays small enough for the handshake of every client.
const maxHosts = 100

// mergeHosts returns the hosts of a certificate that replaces a valid certificate: the required hosts
// and the old hosts, since an old address of the host may come back. If there are too many, required
// hosts that are also old come first, so that the next choice is the same, and then new hosts.
func mergeHosts(required, old []string) []string {
	var kept, added, gone []string
	for _, host := range required {
		if slices.Contains(old, host) {
			kept = append(kept, host)
		} else {
			added = append(added, host)
		}
	}
	for _, host := range old {
		if !slices.Contains(required, host) {
			gone = append(gone, host)
		}
	}
	merged := slices.Concat(kept, added, gone)
	return merged[:min(len(merged), maxHosts)]
}

func (l *leaf) issueCertificate(ca *pair, now time.Time) (*pair, error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: l.name, Organization: l.groups},
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{l.extKeyUsage()},
	}
	for _, host := range l.hosts[:min(len(l.hosts), maxHosts)] {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return signCertificate(template, ca)
}

func newCA(now time.Time) (*pair, error) {
	template := &x509.Certificate{
		// The time distinguishes two CAs of one host in people's kubeconfigs.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("drover-ca@%d", now.Unix())},
		NotBefore:             time.Unix(0, 0),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	return signCertificate(template, nil)
}

// isUsableCA requires a year of remaining validity, so that no leaf outlives its CA.
func isUsableCA(ca *pair, now time.Time) bool {
	return ca.cert.IsCA && ca.cert.NotAfter.Sub(now) >= caRenewAt
}

// signCertificate creates a key and a certificate for it. If ca is nil, the certificate is self-signed.
func signCertificate(template *x509.Certificate, ca *pair) (*pair, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	if ca == nil {
		ca = &pair{cert: template, key: key}
	}
	cert, err := signKey(template, ca, &key.PublicKey)
	return &pair{cert: cert, key: key}, err
}

// signKey creates a certificate for a public key.
func signKey(template *x509.Certificate, ca *pair, key *ecdsa.PublicKey) (cert *x509.Certificate, err error) {
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	// kube-apiserver only reads service-account keys in this form.
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// savePair writes the certificate and the key into one file, so that a reader always gets a
// matching pair.
func savePair(path string, p *pair) error {
	key, err := keyPEM(p.key)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(p.certPEM(), key...), 0o600)
}

func loadPair(path string) (*pair, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	return parsePair(path, data)
}

func parsePair(path string, data []byte) (*pair, error) {
	both, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, fmt.Errorf("%s is %w: %w", path, errDamaged, err)
	}
	key, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is %w: not an ECDSA key", path, errDamaged)
	}
	return &pair{cert: both.Leaf, key: key}, nil
}

func loadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s is %w: no PEM in it", path, errDamaged)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s is %w: %w", path, errDamaged, err)
	}
	return key, nil
}

// readPrivate reads a file of secrets and makes it private, in case it was copied here
// carelessly.
func readPrivate(path string) ([]byte, error) {
	data, _, err := datadir.Read(path)
	if err != nil {
		return nil, err
	}
	return data, os.Chmod(path, 0o600)
}

// Split returns the certificate and the key in a file of the store as separate PEM texts.
func Split(path string) (cert, key []byte, err error) {
	p, err := loadPair(path)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(p.key)
	return p.certPEM(), key, err
}
