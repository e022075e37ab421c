// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	certificateType = "CERTIFICATE"
	keyType         = "EC PRIVATE KEY"
	// renewBefore is how long before its end a certificate is replaced, so that it does not end during a request.
	renewBefore = 5 * time.Minute
)

// Credentials are a certificate and its key, both in PEM.
type Credentials struct {
	certificate, key []byte
	leaf             *x509.Certificate
}

func parseCredentials(certificate, key []byte) (*Credentials, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the login: %w", err)
	}
	return &Credentials{certificate, key, pair.Leaf}, nil
}

// Namespace returns the namespace of the user.
func (c *Credentials) Namespace() string { return strings.Join(c.leaf.Subject.OrganizationalUnit, "") }

// User returns the name by which the API knows the user.
func (c *Credentials) User() string { return c.leaf.Subject.CommonName }

// renewAt returns when new credentials are needed.
func (c *Credentials) renewAt() time.Time { return c.leaf.NotAfter.Add(-renewBefore) }

// isUsable reports whether the certificate is valid for a while, and of the authority of the service as it is now.
func (c *Credentials) isUsable(now time.Time, authority *x509.Certificate) bool {
	return authority != nil && c.leaf.CheckSignatureFrom(authority) == nil && now.After(c.leaf.NotBefore) && now.Before(c.renewAt())
}

// execCredential is the type ExecCredential of API client.authentication.k8s.io/v1.
type execCredential struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Status     execStatus `json:"status"`
}

type execStatus struct {
	ExpirationTimestamp   time.Time `json:"expirationTimestamp"`
	ClientCertificateData string    `json:"clientCertificateData"`
	ClientKeyData         string    `json:"clientKeyData"`
}

// PrintForProgram prints the credentials for a client of Kubernetes.
func (c *Credentials) PrintForProgram(out io.Writer) error {
	return json.NewEncoder(out).Encode(execCredential{
		APIVersion: execVersion, Kind: "ExecCredential",
		Status: execStatus{c.renewAt().UTC(), string(c.certificate), string(c.key)},
	})
}

// PrintForPerson prints who is logged in, without the key.
func (c *Credentials) PrintForPerson(out io.Writer) error {
	_, err := fmt.Fprintf(out, "Logged in as %s until %s. Namespace: %s\n", c.User(), c.leaf.NotAfter.Local().Format(time.TimeOnly), c.Namespace())
	return err
}

// Run is the command drover login. Clients of Kubernetes set KUBERNETES_EXEC_INFO.
func Run(c *Client, getenv func(string) string, out io.Writer) error {
	credentials, err := c.Obtain()
	switch {
	case err != nil:
		return err
	case getenv("KUBERNETES_EXEC_INFO") != "":
		return credentials.PrintForProgram(out)
	}
	return credentials.PrintForPerson(out)
}
