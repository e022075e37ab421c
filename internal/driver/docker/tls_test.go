// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// TestTLS connects to the engine with the variables that every Docker client reads.
func TestTLS(t *testing.T) {
	engine := httptest.NewUnstartedServer(newProxy(t))
	engine.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	engine.StartTLS()
	t.Cleanup(engine.Close)
	certs := t.TempDir()
	pair := engine.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	writePEM(t, filepath.Join(certs, "ca.pem"), "CERTIFICATE", pair.Certificate[0])
	writePEM(t, filepath.Join(certs, "cert.pem"), "CERTIFICATE", pair.Certificate[0])
	writePEM(t, filepath.Join(certs, "key.pem"), "PRIVATE KEY", key)

	t.Setenv("DOCKER_HOST", strings.Replace(engine.URL, "https", "tcp", 1))
	plain := newDriver(t, Options{})
	_, err = plain.List(t.Context())
	wantError(t, err, driver.ErrUnavailable, "", "HTTPS")

	t.Setenv("DOCKER_TLS_VERIFY", "1")
	t.Setenv("DOCKER_CERT_PATH", certs)
	d := newDriver(t, Options{})
	spec := newSpec(t, d, guestImages(t).plain)
	ensureState(t, d, spec, driver.StateRunning)
}

func writePEM(t *testing.T, path, kind string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
}
