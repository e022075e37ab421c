// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/standalone/internal/datadir"
)

// Certificate is a certificate of a store as it is now.
type Certificate struct {
	// File is its name in the store.
	File string
	// NotBefore and NotAfter bound its validity, and RenewAt is when Ensure replaces it.
	NotBefore, NotAfter, RenewAt time.Time
	// IsForeign is set if another authority than the store's has signed it.
	IsForeign bool
	// Err is why it cannot be read. Ensure replaces one that is missing or damaged.
	Err error
}

// Inspect reads the certificates of a store, that of its authority first. Unlike Ensure it
// changes nothing.
func (s *Store) Inspect() []Certificate {
	ca, err := s.readPair(caFile)
	all := []Certificate{describe(caFile, ca, err, caRenewAt)}
	for _, want := range s.requiredLeaves() {
		have, err := s.readPair(want.file)
		c := describe(want.file, have, err, leafRenew)
		c.IsForeign = err == nil && ca != nil && have.cert.CheckSignatureFrom(ca.cert) != nil
		all = append(all, c)
	}
	return all
}

func (s *Store) readPair(file string) (*pair, error) {
	path := filepath.Join(s.Dir, file)
	data, _, err := datadir.Read(path)
	if err != nil {
		return nil, err
	}
	return parsePair(path, data)
}

func describe(file string, have *pair, err error, renewAt time.Duration) Certificate {
	if err != nil {
		return Certificate{File: file, Err: err}
	}
	return Certificate{
		File: file, NotBefore: have.cert.NotBefore, NotAfter: have.cert.NotAfter,
		RenewAt: have.cert.NotAfter.Add(-renewAt),
	}
}

// ParseCertificate reads the first certificate of a text in PEM.
func ParseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("there is no certificate in it")
	}
	return x509.ParseCertificate(block.Bytes)
}
