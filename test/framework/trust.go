// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"encoding/pem"
	"errors"
	"net/http/httptest"
	"os"
)

// TrustTestServers makes this process trust the web servers of tests, which all have the same certificate,
// and no others. It has to be called before the process speaks TLS, thus in TestMain.
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
