// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint serves streams at a separate address, for clusters whose API server is
// not part of Drover.
//
// Start with New in server.go. authenticate.go authenticates clients, and publish.go writes the
// address of the endpoint to a ConfigMap.
package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// The files of Options.CertDir, named as in a Secret of type kubernetes.io/tls.
const (
	certFile = "tls.crt"
	keyFile  = "tls.key"
	caFile   = "ca.crt"
)

const (
	headerTimeout = 10 * time.Second
	// maxHeader is the largest header, in bytes. It is enough for commands that people type.
	maxHeader = 64 << 10
	// maxStrangers is how many connections of unauthenticated clients may be open.
	maxStrangers = 256
	// spareConnections is how many connections users may have for requests other than streams, such as lists.
	spareConnections = 256
)

// Options are the settings of an endpoint.
type Options struct {
	// Address is the address to listen on.
	Address string
	// CertDir is the folder with tls.crt, tls.key, and ca.crt for clients. Changed files are read again.
	CertDir string
	// URL is the address for clients, which the ConfigMap contains.
	URL string
	// Drivers are the names of the drivers whose streams are served.
	Drivers []string
	// Streams is how many streams Handler serves at a time, and StreamsPerVM how many for one
	// VirtualMachine.
	Streams, StreamsPerVM int
	Handler               http.Handler
	// Config, HTTPClient, Client and Live connect to the API server.
	Config     *rest.Config
	HTTPClient *http.Client
	Client     client.Client
	Live       client.Reader
	Clock      clock.WithTicker
	Log        logr.Logger
}

// New opens the endpoint. A manager to which the result is added serves the endpoint.
func New(ctx context.Context, o Options) ([]manager.Runnable, error) {
	certificate, err := certwatcher.New(filepath.Join(o.CertDir, certFile), filepath.Join(o.CertDir, keyFile))
	if err != nil {
		return nil, fmt.Errorf("--streams-cert-dir: %w", err)
	}
	if _, err := readCA(o.CertDir); err != nil {
		return nil, fmt.Errorf("--streams-cert-dir: %w", err)
	}
	ca := &clientCA{Options: o}
	clients, err := newClients(o, ca)
	if err != nil {
		return nil, err
	}
	opened, err := listenConfig().Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("--streams-address: %w", err)
	}
	counted := listener{Listener: opened, connections: newConnections(o.Streams, o.StreamsPerVM)}
	return []manager.Runnable{certificate, ca, &publisher{Options: o}, &manager.Server{
		Name: "streams", Listener: tls.NewListener(counted, tlsConfig(certificate)), ShutdownTimeout: new(time.Second),
		Server: newServer(clients, o.Log),
	}}, nil
}

// newServer returns a server that closes each connection after one request, so that no connection
// stays open idle.
func newServer(handler http.Handler, log logr.Logger) *http.Server {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, ConnContext: withConnection,
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(log.V(1)), slog.LevelInfo), // about clients that break off
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// tlsConfig allows only HTTP/1.1, the version with WebSockets. It only requests a client certificate:
// the authenticator checks the certificate at each request, since the cluster's CA may change.
func tlsConfig(certificate *certwatcher.CertWatcher) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: certificate.GetCertificate, ClientAuth: tls.RequestClientCert,
	}
}
