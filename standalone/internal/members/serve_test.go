// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestReadKey(t *testing.T) {
	t.Parallel()
	good := newRequest(t, elliptic.P256())
	changed := bytes.Clone(good)
	changed[len(changed)-1] ^= 1
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	assert.NoError(t, err)
	for name, c := range map[string]struct {
		request []byte
		says    string
	}{
		"a request":           {request: good},
		"nothing":             {says: "not a certificate request"},
		"too much":            {request: make([]byte, 5000), says: "more than 4096 bytes"},
		"another signature":   {request: changed, says: "must have a key of ECDSA on P-256, and its signature"},
		"another curve":       {request: newRequest(t, elliptic.P384()), says: "must have a key of ECDSA on P-256"},
		"another kind of key": {request: signRequest(t, weak), says: "must have a key of ECDSA on P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := readKey(bytes.NewReader(c.request))
			if c.says == "" {
				assert.True(t, err == nil && key != nil, "%v", err)
			} else {
				assert.ErrorSays(t, "of the request", err, c.says)
			}
		})
	}
}

func newRequest(t *testing.T, curve elliptic.Curve) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	assert.NoError(t, err)
	return signRequest(t, key)
}

func signRequest(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	assert.NoError(t, err)
	return request
}

// TestShares checks that one user cannot take all connections.
func TestShares(t *testing.T) {
	t.Parallel()
	s := &shares{}
	var taken int
	for range 5 {
		for uid := range uint32(3) {
			if s.take(uid) {
				taken++
			}
		}
	}
	assert.Equal(t, "connections of three users", taken, 6)
	assert.True(t, s.take(3) && s.take(4) && !s.take(5), "eight may be served at a time")
	s.release(0)
	assert.True(t, !s.take(1) && s.take(5), "a connection that ends is free for others")
}
