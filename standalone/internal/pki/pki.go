// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pki makes and renews the certificates of one Drover installation: its
// CA, the certificate that kube-apiserver presents, one client certificate for each
// user, and the key that signs service-account tokens.
//
// Start with Store.Ensure. It is repeatable: it keeps valid files, and recreates files
// that are missing, damaged, signed by another CA, or about to expire. A certificate and its
// key share one file, so that no crash can leave a pair that does not match.
package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
)

// How long certificates last. A leaf is renewed when a third of its life is
// left. The CA is renewed when a year is left, and all leaves with it.
const (
	caLife    = 20 * 365 * 24 * time.Hour
	caRenewAt = 365 * 24 * time.Hour
	leafLife  = 365 * 24 * time.Hour
	leafRenew = leafLife / 3
	// backdate allows for a clock that is set back slightly later. The CA is valid
	// since 1970: a host without a battery for its clock may start there, and must
	// not lose the CA that people's kubeconfigs contain.
	backdate = time.Hour
)

// Files in the store. Files that contain a key have mode 0600.
const (
	caFile                = "ca.pem" // certificate and key
	caBundleFile          = "ca.crt" // only the certificate, for clients
	servingFile           = "serving.pem"
	adminFile             = "admin.pem"
	controllerManagerFile = "controller-manager.pem"
	controllerFile        = "controller.pem"
	serviceAccountFile    = "service-account.key"
)

// Names of the users that are parts of this program.
const (
	ControllerName        = "drover-controller"
	ControllerManagerName = "system:kube-controller-manager"
)

// Store is a folder of certificates and keys.
type Store struct {
	// Dir is created if it is missing.
	Dir string
	// Hosts returns the names and IP addresses by which clients may now call the server, the
	// most important first.
	Hosts func() []string
	Clock clock.WithTicker
}

// CABundle is the file with which clients verify the server.
func (s *Store) CABundle() string { return filepath.Join(s.Dir, caBundleFile) }

// Serving is the certificate and key of kube-apiserver.
func (s *Store) Serving() string { return filepath.Join(s.Dir, servingFile) }

// Admin is the certificate and key of the person who runs Drover.
func (s *Store) Admin() string { return filepath.Join(s.Dir, adminFile) }

// ControllerManager is the certificate and key of kube-controller-manager.
func (s *Store) ControllerManager() string { return filepath.Join(s.Dir, controllerManagerFile) }

// Controller is the certificate and key of the controller of Drover.
func (s *Store) Controller() string { return filepath.Join(s.Dir, controllerFile) }

// ServiceAccountKey signs and checks service-account tokens.
func (s *Store) ServiceAccountKey() string { return filepath.Join(s.Dir, serviceAccountFile) }

// Ensure completes the store. It returns the files that it has created or renewed, even if
// it fails after that.
func (s *Store) Ensure() ([]string, error) {
	if err := s.prepareFolder(); err != nil {
		return nil, err
	}
	ca, changed, err := s.ensureCA()
	if err != nil {
		return changed, fmt.Errorf("certificate authority: %w", err)
	}
	for _, want := range s.requiredLeaves() {
		made, err := s.ensureLeaf(ca, want)
		if err != nil {
			return changed, fmt.Errorf("certificate %s: %w", want.file, err)
		}
		if made {
			changed = append(changed, want.file)
		}
	}
	made, err := s.ensureServiceAccountKey()
	if err != nil {
		return changed, fmt.Errorf("service-account key: %w", err)
	}
	if made {
		changed = append(changed, serviceAccountFile)
	}
	return changed, nil
}

// SignUser returns a certificate of a user for the user's public key, in PEM. It is not stored, and is valid until
// life has passed.
func (s *Store) SignUser(subject pkix.Name, key *ecdsa.PublicKey, life time.Duration) ([]byte, error) {
	ca, err := loadPair(filepath.Join(s.Dir, caFile))
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	now := s.Clock.Now()
	cert, err := signKey(&x509.Certificate{
		Subject:     subject,
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", subject.CommonName, err)
	}
	return (&pair{cert: cert}).certPEM(), nil
}

func (s *Store) prepareFolder() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Sweep(s.Dir)
}

// ensureCA loads the CA, or makes a new one if it is missing, damaged or near its
// end. It updates the bundle accordingly.
func (s *Store) ensureCA() (*pair, []string, error) {
	path := filepath.Join(s.Dir, caFile)
	var changed []string
	ca, err := loadPair(path)
	if err != nil && !isRepairable(err) {
		return nil, nil, err
	}
	if err != nil || !isUsableCA(ca, s.Clock.Now()) {
		if ca, err = newCA(s.Clock.Now()); err != nil {
			return nil, nil, err
		}
		if err := savePair(path, ca); err != nil {
			return nil, nil, err
		}
		changed = []string{caFile}
	}
	return ca, changed, atomicfile.Update(s.CABundle(), ca.certPEM(), 0o644)
}

func (s *Store) requiredLeaves() []leaf {
	return []leaf{
		{file: servingFile, name: "kube-apiserver", hosts: s.Hosts()},
		{file: adminFile, name: "drover-admin", groups: []string{"system:masters"}},
		{file: controllerManagerFile, name: ControllerManagerName},
		{file: controllerFile, name: ControllerName, groups: []string{"system:masters"}},
	}
}

func (s *Store) ensureLeaf(ca *pair, want leaf) (bool, error) {
	path := filepath.Join(s.Dir, want.file)
	have, err := loadPair(path)
	if err != nil && !isRepairable(err) {
		return false, err
	}
	if err == nil && want.isIssuedAs(have, ca, s.Clock.Now()) {
		if want.hosts = mergeHosts(want.hosts, hostsOf(have.cert)); want.coversHosts(have.cert) {
			return false, nil
		}
	}
	made, err := want.issueCertificate(ca, s.Clock.Now())
	if err != nil {
		return false, err
	}
	return true, savePair(path, made)
}

func (s *Store) ensureServiceAccountKey() (bool, error) {
	path := s.ServiceAccountKey()
	_, err := loadKey(path)
	if err == nil {
		return false, nil
	}
	if !isRepairable(err) {
		return false, err
	}
	key, err := newKey()
	if err != nil {
		return false, err
	}
	block, err := keyPEM(key)
	if err != nil {
		return false, err
	}
	return true, atomicfile.Write(path, block, 0o600)
}

// errDamaged marks a file whose content is not a certificate or key.
var errDamaged = errors.New("damaged")

// isRepairable reports whether err is about a file that may be recreated. A file that cannot be
// read must not be changed.
func isRepairable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged)
}

// Hosts returns the names under which clients reach a server bound to the given
// address, on this host and in a cluster.
func Hosts(bind net.IP, service net.IP, hostname string, local []net.IP) []string {
	hosts := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "127.0.0.1", "::1", service.String(),
	}
	if bind.IsLoopback() && bind.String() == "127.0.0.1" {
		return hosts
	}
	if !bind.IsUnspecified() {
		return append(hosts, bind.String())
	}
	if isHostname(hostname) {
		hosts = append(hosts, hostname)
	}
	for _, ip := range local {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// isHostname reports whether a certificate can have a host's name.
func isHostname(name string) bool {
	return len(validation.IsDNS1123Subdomain(strings.ReplaceAll(strings.ToLower(name), "_", "-"))) == 0
}
